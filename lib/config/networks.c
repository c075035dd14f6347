/*
 * networks.c - the line rates of common NICs and host links
 *
 * Of a network whose transport reaches a smaller share of its line than InfiniBand does, the share
 * is here too.
 */
#include "config/networks_impl.h"

#include <string.h>

static const struct {
    enum link_kind kind;
    const char *name;
    double rate, efficiency;
} links[] = {
    { LINK_NIC, "ib-hdr", 25e9, 0 },     { LINK_NIC, "ib-ndr", 50e9, 0 },
    { LINK_NIC, "ib-xdr", 100e9, 0 },    { LINK_NIC, "roce-400", 50e9, 0.65 },
    { LINK_NIC, "efa-v2", 50e9, 0.6 },   { LINK_HOST, "pcie4-x16", 25e9, 0 },
    { LINK_HOST, "pcie5-x16", 55e9, 0 }, { LINK_HOST, "c2c", 400e9, 0 },
};
enum { N_LINKS = sizeof links / sizeof *links };

double network_rate(enum link_kind kind, const char *name)
{
    for (int i = 0; i < N_LINKS; i++)
        if (links[i].kind == kind && !strcmp(links[i].name, name))
            return links[i].rate;
    return 0;
}

double network_efficiency(const char *name)
{
    for (int i = 0; i < N_LINKS; i++)
        if (!strcmp(links[i].name, name))
            return links[i].efficiency;
    return 0;
}

void network_list(enum link_kind kind, struct str *out)
{
    int n = 0;

    for (int i = 0; i < N_LINKS; i++)
        if (links[i].kind == kind)
            str_printf(out, n++ ? ", %s" : "%s", links[i].name);
}
