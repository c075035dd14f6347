/*
 * networks_impl.h - links that device and cluster files may name instead of giving a rate
 */
#ifndef CONFIG_NETWORKS_IMPL_H
#define CONFIG_NETWORKS_IMPL_H

#include "base/str.h"

enum link_kind { LINK_NIC, LINK_HOST };

/* Bytes a second of one direction by its line: "ib-ndr", "pcie5-x16". 0: no link of this kind is
 * named so. */
double network_rate(enum link_kind kind, const char *name);

/* Share of the line that a step reaches over this NIC. 0: as over others (links.rail.efficiency),
 * or it is no name. */
double network_efficiency(const char *name);

/* Append all names of a kind: "ib-hdr, ib-ndr". */
void network_list(enum link_kind kind, struct str *out);

#endif
