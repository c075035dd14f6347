/*
 * xid.c - the table
 */
#include "device/xid.h"

#include <stddef.h>

static const struct xid {
    int number;
    enum xid_kind kind;
    const char *words;
} xids[] = {
    { 13, XID_PROGRAM, "a kernel accessed invalid memory or raised another exception" },
    { 31, XID_PROGRAM, "a kernel accessed an address that is not mapped" },
    { 43, XID_NOTE, "the GPU stopped the work of a program that had failed before" },
    { 45, XID_NOTE, "the GPU's work was removed after another error or because a program ended" },
    { 48, XID_ECC, "a double-bit ECC error in the GPU's memory" },
    { 61, XID_BROKEN, "the GPU's microcontroller met a breakpoint or warning" },
    { 62, XID_BROKEN, "the GPU's microcontroller halted" },
    { 63, XID_NOTE, "a row of the GPU's memory will be remapped at its next reset" },
    { 64, XID_BROKEN, "a bad row of the GPU's memory could not be remapped" },
    { 74, XID_BROKEN, "an error of NVLink: the GPU, its switch or the link between them" },
    { 79, XID_BROKEN, "the GPU has fallen off the bus" },
    { 92, XID_NOTE, "many single-bit ECC errors, all of them corrected" },
    { 94, XID_CONTAINED, "an uncorrectable ECC error, contained to one program" },
    { 95, XID_BROKEN, "an uncorrectable ECC error that was not contained" },
    { 119, XID_BROKEN, "the GPU's system processor (GSP) does not respond to the driver" },
    { 120, XID_BROKEN, "the GPU's system processor (GSP) reported an error" },
    { 140, XID_BROKEN, "an ECC error that the GPU could not recover from" },
};

static const struct xid *find(int number)
{
    for (size_t i = 0; i < sizeof xids / sizeof *xids; i++)
        if (xids[i].number == number)
            return &xids[i];
    return NULL;
}

const char *xid_words(int xid)
{
    const struct xid *found = find(xid);

    return found ? found->words : "see NVIDIA's catalogue of Xid errors";
}

/* One that is not listed ends no restart: it is reported, without an explanation. */
enum xid_kind xid_kind(int xid)
{
    const struct xid *found = find(xid);

    return found ? found->kind : XID_NOTE;
}

int xid_is_broken(int xid)
{
    enum xid_kind kind = xid_kind(xid);

    return kind == XID_BROKEN || kind == XID_ECC;
}

int xid_is_final(int xid)
{
    enum xid_kind kind = xid_kind(xid);

    return kind != XID_NOTE && kind != XID_ECC;
}

const char *xid_advice(int xid)
{
    switch (xid_kind(xid)) {
    case XID_PROGRAM:
        return "a restart will fail again; compute-sanitizer finds the kernel";
    case XID_ECC:
        return "there is no Xid 94 for a contained error: drain the node, the GPU needs a reset";
    case XID_CONTAINED:
        return "the GPU can be used again: restart the job";
    case XID_BROKEN:
        return "drain the node: the GPU needs a reset, and a hardware check if the error returns";
    case XID_NOTE:
        break;
    }
    return "see dmesg";
}
