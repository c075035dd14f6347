/*
 * xid.h - the driver's numbers for what goes wrong in a GPU, in words
 *
 * The kernel's log has them as "NVRM: Xid (PCI:0000:17:00): 79, ...", NVML as events. Meanings and
 * what to do are those of NVIDIA's catalogue of Xid errors.
 */
#ifndef DEVICE_XID_H
#define DEVICE_XID_H

/* What an Xid says of the GPU, the mildest first. */
enum xid_kind {
    XID_NOTE,      /* nothing ended by it: a repair, a consequence of another one */
    XID_PROGRAM,   /* most often the program's fault: it would come again */
    XID_CONTAINED, /* the program is ended, the GPU can be used again: a restart is of use */
    XID_BROKEN,    /* the GPU, or the node, must be taken out of use and reset first */
};

/* "the GPU has fallen off the bus"; of numbers that are not listed, words that say so. */
const char *xid_words(int xid);
enum xid_kind xid_kind(int xid);

/* What is to be done: "drain the node: ...". Never NULL. */
const char *xid_advice(int xid);

#endif
