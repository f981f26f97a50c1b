/* SPDX-License-Identifier: Apache-2.0 */
/* The address at which `rmmshim serve` listens. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/* What --listen is when it is not given. */
#define ADDRESS_DEFAULT "127.0.0.1:9835"

enum { ADDRESS_TEXT_BYTES = INET6_ADDRSTRLEN + 16 };

union address {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
};

/* Parses "127.0.0.1:9835", "[::1]:9835", or a port alone, which is of 127.0.0.1.  False after a
 * line that shows the place of the mistake. */
bool address_parse(const char *text, union address *address);

/* True when only programs of this machine reach the address. */
bool address_is_loopback(const union address *address);

/* Writes the address as address_parse takes it; port 0 too. */
void address_format(const union address *address, char text[ADDRESS_TEXT_BYTES]);

/* Opens a socket that listens there, and writes the port to the address where that had 0.  A
 * descriptor, or -errno. */
int address_listen(union address *address);
