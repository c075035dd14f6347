/*
 * xid.h - the driver's numbers for what goes wrong in a GPU, in words
 *
 * The kernel's log has them as "NVRM: Xid (PCI:0000:17:00): 79, ...", NVML as events. Meanings and
 * what to do are those of NVIDIA's catalogue of Xid errors.
 *
 * One uncorrectable ECC error gives several: 48 says that it has happened, 94 or 95 that it was
 * contained to the programs that used the memory, or not, and 63 or 64 what becomes of the row.
 * They come in any order. A GPU of before Ampere, or without containment, says 48 alone.
 */
#ifndef DEVICE_XID_H
#define DEVICE_XID_H

/*
 * What an Xid says of the GPU. Of several of one GPU the last kind in this order stands for all of
 * them: so contained comes behind ECC, which it makes harmless.
 */
enum xid_kind {
    XID_NOTE,    /* nothing ended by it: a repair, a consequence of another one */
    XID_PROGRAM, /* most often the program's fault: it would come again */
    XID_ECC,     /* an uncorrectable error: as broken, unless another says that it was contained */
    XID_CONTAINED, /* the program is ended, the GPU can be used again: restart the job */
    XID_BROKEN,    /* the GPU, or the node, must be taken out of use and reset first */
};

/* "the GPU has fallen off the bus"; of numbers that are not listed, words that say so. */
const char *xid_words(int xid);
enum xid_kind xid_kind(int xid);

/* Whether the GPU must be reset, if this stands for all its Xids. */
int xid_is_broken(int xid);

/* Whether this is likely the last word on an error, and no other Xid explains it a moment later. */
int xid_is_final(int xid);

/* What is to be done: "drain the node: ...". Never NULL. */
const char *xid_advice(int xid);

#endif
