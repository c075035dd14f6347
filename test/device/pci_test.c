/*
 * pci_test.c - NUMA nodes of devices in a sysfs that is made up
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "device/pci.h"
#include "support/temporary.h"

static char root[256];

static void add_device(const char *address, const char *node)
{
    char path[512];
    struct err err;

    snprintf(path, sizeof path, "%s/bus/pci/devices/%s", root, address);
    assert_int_equal(file_make_folders(path, &err), 0);
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", root, address);
    assert_int_equal(file_write(path, node, strlen(node), &err), 0);
}

static void nodes_are_read_and_the_unknown_is_unknown(void **state)
{
    struct err err;

    (void)state;
    assert_int_equal(temporary_folder(root, sizeof root), 0);
    add_device("0000:17:00.0", "0\n");
    add_device("0000:9a:00.0", "1\n");
    add_device("0000:9b:00.0", "-1\n"); /* as in a virtual machine */
    add_device("0000:9c:00.0", "");
    assert_int_equal(pci_numa_node(root, "0000:17:00.0"), 0);
    assert_int_equal(pci_numa_node(root, "0000:9a:00.0"), 1);
    assert_int_equal(pci_numa_node(root, "0000:9b:00.0"), -1);
    assert_int_equal(pci_numa_node(root, "0000:9c:00.0"), -1);
    assert_int_equal(pci_numa_node(root, "0000:9d:00.0"), -1);
    assert_int_equal(pci_numa_node(root, ""), -1);
    assert_int_equal(pci_numa_node(root, "../devices/0000:9a:00.0"), -1);
    assert_int_equal(file_remove_tree(root, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_read_and_the_unknown_is_unknown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
