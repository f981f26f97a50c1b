/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/serve/address.h"

#include "tool/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 16, PORT_MAX = 65535 };

/* ---- as text ---- */

static bool refuse(const char *text, const char *at, const char *what)
{
    struct rs_diagnostics diagnostics = tool_diagnostics();

    rs_diagnose(&diagnostics, &(struct rs_source){"--listen", text}, at,
                "%s; an address is 127.0.0.1:9835, [::1]:9835, or a port alone", what);
    return false;
}

static bool take_port(const char *text, const char *at, in_port_t *port)
{
    size_t digits = strspn(at, "0123456789");
    unsigned long number = digits > 0 && digits <= 5 ? strtoul(at, NULL, 10) : PORT_MAX + 1ul;

    if (!*at)
        return refuse(text, at, "no port");
    if (at[digits])
        return refuse(text, at + digits, "a port is a number");
    if (number > PORT_MAX)
        return refuse(text, at, "a port is at most 65535");
    *port = htons((in_port_t)number);
    return true;
}

/* Copies the address between begin and end, which is an address of the family or refused. */
static bool take_host(int family, const char *begin, const char *end, void *host)
{
    char copy[INET6_ADDRSTRLEN];
    size_t length = (size_t)(end - begin);

    if (length >= sizeof(copy))
        return false;
    memcpy(copy, begin, length);
    copy[length] = '\0';
    return inet_pton(family, copy, host) == 1;
}

static bool parse_ipv6(const char *text, union address *address)
{
    const char *end = strchr(text, ']');

    address->ipv6 = (struct sockaddr_in6){.sin6_family = AF_INET6};
    if (!end)
        return refuse(text, text + strlen(text), "']' is missing after the IPv6 address");
    if (!take_host(AF_INET6, text + 1, end, &address->ipv6.sin6_addr))
        return refuse(text, text + 1, "this is not an IPv6 address");
    if (end[1] != ':')
        return refuse(text, end + 1, "':' and a port are missing after the address");
    return take_port(text, end + 2, &address->ipv6.sin6_port);
}

bool address_parse(const char *text, union address *address)
{
    const char *colon = strchr(text, ':');

    if (*text == '[')
        return parse_ipv6(text, address);
    address->ipv4 = (struct sockaddr_in){.sin_family = AF_INET};
    address->ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!colon && !text[strspn(text, "0123456789")])
        return take_port(text, text, &address->ipv4.sin_port);
    if (colon && strchr(colon + 1, ':'))
        return refuse(text, text, "an IPv6 address needs brackets");
    if (!take_host(AF_INET, text, colon ? colon : text + strlen(text), &address->ipv4.sin_addr))
        return refuse(text, text, "this is not an IPv4 address, and names are not looked up");
    if (!colon)
        return refuse(text, text + strlen(text), "':' and a port are missing after the address");
    return take_port(text, colon + 1, &address->ipv4.sin_port);
}

void address_format(const union address *address, char text[ADDRESS_TEXT_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "";

    if (address->any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address->ipv6.sin6_addr, host, sizeof(host));
        snprintf(text, ADDRESS_TEXT_BYTES, "[%s]:%u", host, ntohs(address->ipv6.sin6_port));
    } else {
        inet_ntop(AF_INET, &address->ipv4.sin_addr, host, sizeof(host));
        snprintf(text, ADDRESS_TEXT_BYTES, "%s:%u", host, ntohs(address->ipv4.sin_port));
    }
}

bool address_is_loopback(const union address *address)
{
    const struct in6_addr *ipv6 = &address->ipv6.sin6_addr;

    if (address->any.sa_family == AF_INET)
        return ntohl(address->ipv4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return IN6_IS_ADDR_LOOPBACK(ipv6) ||
           (IN6_IS_ADDR_V4MAPPED(ipv6) && ipv6->s6_addr[12] == IN_LOOPBACKNET);
}

/* ---- as a socket ---- */

static bool listens(int fd, union address *address)
{
    socklen_t bytes =
        address->any.sa_family == AF_INET6 ? sizeof(address->ipv6) : sizeof(address->ipv4);
    const int yes = 1;

    /* Connections of a server that has just ended keep the port for a minute otherwise. */
    return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
           bind(fd, &address->any, bytes) == 0 && listen(fd, BACKLOG) == 0 &&
           getsockname(fd, &address->any, &bytes) == 0;
}

int address_listen(union address *address)
{
    int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error;

    if (fd < 0)
        return -errno;
    if (listens(fd, address))
        return fd;
    error = errno;
    close(fd);
    return -error;
}
