/*
 * tcp_card_test.c - which of a machine's addresses ranks tell each other
 *
 * The interfaces are played: getifaddrs is this file's. Their speeds are files of the test's own,
 * reached from
 * /sys/class/net by the interface's name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/tcp_impl.h"

enum { N_INTERFACES = 20 };

static struct ifaddrs interfaces[N_INTERFACES];
static struct sockaddr_in addresses[N_INTERFACES];
static char fast[32];

int getifaddrs(struct ifaddrs **list)
{
    *list = interfaces;
    return 0;
}

void freeifaddrs(struct ifaddrs *list)
{
    assert_ptr_equal(list, interfaces);
}

/* Interface i has the address 203.0.113.i; all are slow but those from first_fast on. */
static void play(int first_fast)
{
    static char slow[] = "none";

    for (int i = 0; i < N_INTERFACES; i++) {
        addresses[i] = (struct sockaddr_in){ .sin_family = AF_INET,
                                             .sin_addr.s_addr = htonl(0xcb007100u + (unsigned)i) };
        interfaces[i] =
            (struct ifaddrs){ .ifa_next = i + 1 < N_INTERFACES ? &interfaces[i + 1] : NULL,
                              .ifa_name = i < first_fast ? slow : fast,
                              .ifa_flags = IFF_UP,
                              .ifa_addr = (struct sockaddr *)&addresses[i] };
    }
}

static int number_of(const struct tcp_address *address)
{
    return (int)(ntohl(((const struct sockaddr_in *)&address->socket)->sin_addr.s_addr) & 255);
}

static void the_slowest_are_left_out(void **state)
{
    struct tcp_address list[TCP_ADDRESSES_MAX];

    (void)state;
    play(18);
    assert_int_equal(tcp_addresses_list(NULL, 0, list), TCP_ADDRESSES_MAX);
    assert_int_equal(number_of(&list[0]), 18);
    assert_int_equal(number_of(&list[1]), 19);
    for (int i = 2; i < TCP_ADDRESSES_MAX; i++) /* equals keep the system's order */
        assert_int_equal(number_of(&list[i]), i - 2);
}

static void a_network_is_all_that_is_asked_for(void **state)
{
    struct tcp_address list[TCP_ADDRESSES_MAX];

    (void)state;
    play(N_INTERFACES);
    assert_int_equal(tcp_addresses_list("203.0.113.16/30", 0, list), 4);
    assert_int_equal(number_of(&list[0]), 16);
    assert_int_equal(tcp_addresses_list(NULL, 1, list), 0);
}

static int begin(void **state)
{
    static char folder[] = "/tmp/lmtXXXXXX";
    char path[64];
    FILE *file;

    *state = folder;
    assert_non_null(mkdtemp(folder));
    snprintf(fast, sizeof fast, "../../..%s", folder);
    snprintf(path, sizeof path, "%s/speed", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("100000\n", file);
    return fclose(file);
}

static int end(void **state)
{
    char path[64];

    snprintf(path, sizeof path, "%s/speed", (char *)*state);
    return unlink(path) || rmdir(*state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slowest_are_left_out),
        cmocka_unit_test(a_network_is_all_that_is_asked_for),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
