/*
 * kpeer - a peer that speaks RDS through the kernel's PF_RDS sockets.
 *
 * It runs in a test guest (see kernel-guest.sh) as the other end of interop
 * tests.  `kpeer help` lists the commands.
 *
 * Payload pattern, to be made and checked by the other end as well.  Message
 * number `seq` of a source (counted from 0 for every source address and port)
 * with seed `s` carries at offset i the byte
 *
 *     (s + 31*seq + 7*i + (i >> 8) + 13*(i >> 16)) mod 256
 *
 * except that a message of 16 bytes or more starts with this header:
 *     "KPR1", u32 length of the message, u64 seq      (both big endian)
 *
 * Output is one line for each event, words and key=value pairs, on stdout.
 * Exit status: 0 all went well, 1 a check or a call failed, 2 usage, 3 time out.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/rds.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif

enum { EX_GOOD, EX_FAILED, EX_USAGE, EX_TIMEOUT };

union addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

#define MAX_SIZES 64

static struct {
	union addr from, to, at;
	size_t sizes[MAX_SIZES];
	int nsizes;
	const char *dump;
	size_t size_lo, size_hi, bufsize;
	uint64_t count, first;
	long interval_ms, delay_ms, timeout_ms, linger_ms;
	int seed, sndbuf, rcvbuf, sockets, tos;
	int verbose, nonblock, zcopy, echo, noverify, gaps, cancel, pin, monitor, nodrain;
} o = {
	.size_lo = 64, .size_hi = 64, .bufsize = 4 << 20, .count = 1,
	.timeout_ms = 10000, .interval_ms = -1, .sockets = 1, .tos = -1,
};

static uint64_t messages, bytes, errors;

static void usage(FILE *f)
{
	fputs(
"kpeer send --from A:P --to B:P   send patterned messages\n"
"    --size N|LO-HI|A,B,...  bytes of a message (64); several are gone through in turn\n"
"    --count N        messages (1)         --first N      number of the first (0)\n"
"    --sockets N      use N source ports from P on, in turn (1)\n"
"    --interval-ms N  wait between two     --linger-ms N  wait before the sockets close\n"
"    --no-drain       close them at once: the kernel then drops what is not yet sent\n"
"                     (kpeer waits until all is acknowledged, or for --linger-ms)\n"
"    --echo           wait for each message to come back and check it\n"
"    --zcopy          MSG_ZEROCOPY with a cookie each; wait for all completions\n"
"    --nonblock       on EAGAIN or ENOBUFS say so, poll and try again\n"
"    --cong-monitor   RDS_CONG_MONITOR; report the updates (ENOBUFS with --nonblock)\n"
"    --cancel         at the end drop what is not yet acknowledged (RDS_CANCEL_SENT_TO)\n"
"    --tos N          type of service (SIOCRDSSETTOS)\n"
"kpeer recv --at A:P              receive and check\n"
"    --count N (0: until time out)         --delay-ms N   wait before the first read\n"
"    --interval-ms N  wait between two     --allow-gaps   lost messages are no error\n"
"    --no-verify      do not check bytes   --dump FILE    append payloads to FILE\n"
"kpeer echo --at A:P              send each message back to where it came from\n"
"kpeer ping --from A --to B       ping port 0 (--count, --interval-ms)\n"
"kpeer bind --at A:P              bind, then only wait for --linger-ms\n"
"kpeer info [KIND...]             counters conns sockets send retrans recv tcp, or all\n"
"all: --seed N (0)  --timeout-ms N (10000; 0: none)  --sndbuf N  --rcvbuf N\n"
"     --bufsize N (4 MiB)  --tcp (SO_RDS_TRANSPORT)  -v\n"
"addresses: 10.77.0.2:4000, [fd77::2]:4000\n", f);
}

static void fail(const char *fmt, ...)
{
	va_list ap;
	int e = errno;

	va_start(ap, fmt);
	printf("error ");
	vprintf(fmt, ap);
	va_end(ap);
	printf(": %s (errno=%d)\n", strerror(e), e);
	exit(e == EAGAIN || e == ETIMEDOUT ? EX_TIMEOUT : EX_FAILED);
}

static long long now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

static void nap(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	if (ms > 0)
		nanosleep(&ts, NULL);
}

/* ------------------------------------------------------------- addresses -- */

static union addr parse_addr(const char *s, int need_port)
{
	char host[80];
	const char *colon = NULL, *end = s + strlen(s);
	union addr a;

	memset(&a, 0, sizeof(a));
	if (*s == '[') {
		end = strchr(s, ']');
		if (!end)
			goto bad;
		s++;
		if (end[1] == ':')
			colon = end + 1;
	} else if (strchr(s, ':') && strchr(s, ':') == strrchr(s, ':')) {
		colon = end = strchr(s, ':');
	}
	if ((size_t)(end - s) >= sizeof(host) || (need_port && !colon))
		goto bad;
	memcpy(host, s, end - s);
	host[end - s] = 0;
	if (inet_pton(AF_INET, host, &a.in.sin_addr) == 1) {
		a.in.sin_family = AF_INET;
		a.in.sin_port = htons(colon ? atoi(colon + 1) : 0);
		return a;
	}
	if (inet_pton(AF_INET6, host, &a.in6.sin6_addr) == 1) {
		a.in6.sin6_family = AF_INET6;
		a.in6.sin6_port = htons(colon ? atoi(colon + 1) : 0);
		return a;
	}
bad:
	fprintf(stderr, "kpeer: bad address %s\n", s);
	exit(EX_USAGE);
}

static socklen_t addr_len(const union addr *a)
{
	return a->sa.sa_family == AF_INET6 ? sizeof(a->in6) : sizeof(a->in);
}

static int addr_port(const union addr *a)
{
	return ntohs(a->sa.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port);
}

static void set_port(union addr *a, int port)
{
	if (a->sa.sa_family == AF_INET6)
		a->in6.sin6_port = htons(port);
	else
		a->in.sin_port = htons(port);
}

static int same_addr(const union addr *a, const union addr *b)
{
	if (a->sa.sa_family != b->sa.sa_family || addr_port(a) != addr_port(b))
		return 0;
	if (a->sa.sa_family == AF_INET6)
		return !memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, 16);
	return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
}

static const char *show(const union addr *a)
{
	static char bufs[4][80];
	static int next;
	char host[64], *s = bufs[next++ % 4];

	if (a->sa.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &a->in6.sin6_addr, host, sizeof(host));
		snprintf(s, 80, "[%s]:%d", host, addr_port(a));
	} else if (a->sa.sa_family == AF_INET) {
		inet_ntop(AF_INET, &a->in.sin_addr, host, sizeof(host));
		snprintf(s, 80, "%s:%d", host, addr_port(a));
	} else {
		snprintf(s, 80, "none");
	}
	return s;
}

static const char *ip4(uint32_t be)
{
	static char bufs[4][16];
	static int next;
	char *s = bufs[next++ % 4];

	inet_ntop(AF_INET, &be, s, 16);
	return s;
}

static const char *ip6(const void *p)
{
	static char bufs[4][48];
	static int next;
	char *s = bufs[next++ % 4];

	inet_ntop(AF_INET6, p, s, 48);
	return s;
}

/* --------------------------------------------------------------- pattern -- */

static void put_be(unsigned char *p, uint64_t v, int n)
{
	while (n--) {
		p[n] = v;
		v >>= 8;
	}
}

static uint64_t get_be(const unsigned char *p, int n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | *p++;
	return v;
}

static unsigned char pattern_at(uint64_t seq, size_t i)
{
	return o.seed + 31 * seq + 7 * i + (i >> 8) + 13 * (i >> 16);
}

static void fill(unsigned char *p, size_t len, uint64_t seq)
{
	size_t i;

	for (i = 0; i < len; i++)
		p[i] = pattern_at(seq, i);
	if (len >= 16) {
		memcpy(p, "KPR1", 4);
		put_be(p + 4, len, 4);
		put_be(p + 8, seq, 8);
	}
}

/* Offset of the first wrong byte, or -1. */
static ssize_t mismatch(const unsigned char *p, size_t len, uint64_t seq)
{
	size_t i = len >= 16 ? 16 : 0;

	if (i && (memcmp(p, "KPR1", 4) || get_be(p + 4, 4) != len || get_be(p + 8, 8) != seq))
		return 0;
	for (; i < len; i++) {
		if (p[i] != pattern_at(seq, i))
			return i;
	}
	return -1;
}

static size_t size_of(uint64_t n)
{
	if (o.nsizes)
		return o.sizes[n % o.nsizes];
	return o.size_lo + n % (o.size_hi - o.size_lo + 1);
}

/* --------------------------------------------------------------- sockets -- */

static int rds_socket(union addr *at)
{
	int fd = socket(AF_RDS, SOCK_SEQPACKET, 0), trans = RDS_TRANS_TCP, one = 1;
	struct timeval tv = { o.timeout_ms / 1000, o.timeout_ms % 1000 * 1000 };
	unsigned char tos = o.tos;
	socklen_t len = sizeof(*at);

	if (fd < 0)
		fail("socket(PF_RDS)");
	if (o.sndbuf && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &o.sndbuf, sizeof(int)))
		fail("SO_SNDBUF");
	if (o.rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &o.rcvbuf, sizeof(int)))
		fail("SO_RCVBUF");
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (o.pin && setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &trans, sizeof(trans)))
		fail("SO_RDS_TRANSPORT");
	if (o.zcopy && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)))
		fail("SO_ZEROCOPY");
	if (bind(fd, &at->sa, addr_len(at)))
		fail("bind %s", show(at));
	if (getsockname(fd, &at->sa, &len))
		fail("getsockname");
	if (o.tos >= 0 && ioctl(fd, SIOCRDSSETTOS, &tos))
		fail("SIOCRDSSETTOS");
	if (o.monitor && setsockopt(fd, SOL_RDS, RDS_CONG_MONITOR, &one, sizeof(one)))
		fail("RDS_CONG_MONITOR");
	return fd;
}

struct note {                   /* what came with a recvmsg() beside bytes */
	uint64_t cong;
	int has_cong, cookies, flags;
	uint32_t cookie[RDS_MAX_ZCOOKIES];
};

static ssize_t rds_recv(int fd, void *buf, size_t len, union addr *src, struct note *note, int flags)
{
	char ctl[512];
	struct iovec iov = { buf, len };
	struct msghdr m = {
		.msg_name = src, .msg_namelen = sizeof(*src), .msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = ctl, .msg_controllen = sizeof(ctl),
	};
	struct cmsghdr *c;
	ssize_t n;

	memset(src, 0, sizeof(*src));
	memset(note, 0, sizeof(*note));
	n = recvmsg(fd, &m, flags);
	if (n < 0)
		return n;
	note->flags = m.msg_flags;
	for (c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_RDS)
			continue;
		if (c->cmsg_type == RDS_CMSG_CONG_UPDATE) {
			note->has_cong = 1;
			memcpy(&note->cong, CMSG_DATA(c), sizeof(note->cong));
		} else if (c->cmsg_type == RDS_CMSG_ZCOPY_COMPLETION) {
			struct rds_zcopy_cookies z;
			uint32_t i;

			memcpy(&z, CMSG_DATA(c), sizeof(z));
			for (i = 0; i < z.num && i < RDS_MAX_ZCOOKIES; i++)
				note->cookie[note->cookies++] = z.cookies[i];
		} else {
			printf("cmsg type=%d len=%zu\n", c->cmsg_type, (size_t)c->cmsg_len);
		}
	}
	return n;
}

static ssize_t rds_send(int fd, void *buf, size_t len, union addr *dst, int cookie)
{
	char ctl[CMSG_SPACE(sizeof(uint32_t))] = { 0 };
	struct iovec iov = { buf, len };
	struct msghdr m = {
		.msg_name = dst, .msg_namelen = addr_len(dst), .msg_iov = &iov, .msg_iovlen = 1,
	};
	int flags = o.nonblock ? MSG_DONTWAIT : 0;

	if (cookie >= 0) {
		struct cmsghdr *c;
		uint32_t v = cookie;

		m.msg_control = ctl;
		m.msg_controllen = sizeof(ctl);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_RDS;
		c->cmsg_type = RDS_CMSG_ZCOPY_COOKIE;
		c->cmsg_len = CMSG_LEN(sizeof(v));
		memcpy(CMSG_DATA(c), &v, sizeof(v));
		flags |= MSG_ZEROCOPY;
	}
	return sendmsg(fd, &m, flags);
}

static void summary(const char *what, long long t0)
{
	long long us = now_us() - t0;

	printf("done %s messages=%" PRIu64 " bytes=%" PRIu64 " errors=%" PRIu64
	       " elapsed_ms=%lld rate_kBps=%lld\n", what, messages, bytes, errors,
	       us / 1000, us ? (long long)(bytes * 1000 / us) : 0);
}

/* ------------------------------------------------------------------ send -- */

static void *info_get(int fd, int opt, int *each, int *count);

/* How many messages from this address are not sent or not acknowledged yet.
 * IPv4 addresses show in the IPv6 lists too, as mapped ones. */
static int pending(int fd, const union addr *from)
{
	static const int kinds[] = { RDS6_INFO_SEND_MESSAGES, RDS6_INFO_RETRANS_MESSAGES };
	int total = 0, k, i, n, each;

	for (k = 0; k < 2; k++) {
		char *p = info_get(fd, kinds[k], &each, &n);

		for (i = 0; i < n; i++) {
			struct rds6_info_message *m = (void *)(p + (size_t)i * each);

			if (m->lport != htons(addr_port(from)))
				continue;
			if (from->sa.sa_family == AF_INET6 ?
			    !memcmp(&m->laddr, &from->in6.sin6_addr, 16) :
			    !memcmp((char *)&m->laddr + 12, &from->in.sin_addr, 4))
				total++;
		}
		free(p);
	}
	return total;
}

static void drain(const int *fd, const union addr *from, int n)
{
	long long t0 = now_us(), deadline = t0 + o.timeout_ms * 1000;
	int i, left;

	do {
		for (i = left = 0; i < n; i++)
			left += pending(fd[i], &from[i]);
		if (!left) {
			printf("drained after_ms=%lld\n", (now_us() - t0) / 1000);
			return;
		}
		nap(5);
	} while (!o.timeout_ms || now_us() < deadline);
	printf("undrained messages=%d\n", left);
	errors++;
}

static uint64_t completed;

static void take_note(const struct note *n)
{
	int i;

	if (n->has_cong)
		printf("cong-update mask=0x%016" PRIx64 "\n", n->cong);
	completed += n->cookies;
	if (o.verbose) {
		for (i = 0; i < n->cookies; i++)
			printf("zcopy-done cookie=%u\n", n->cookie[i]);
	}
}

static int cmd_send(void)
{
	int *fd = calloc(o.sockets, sizeof(int)), i;
	union addr *from = calloc(o.sockets, sizeof(union addr)), src;
	unsigned char *buf = NULL, *back = malloc(o.bufsize), **zbuf = NULL;
	uint64_t n, waits = 0;
	long long t0, t1, deadline;
	struct note note;

	for (i = 0; i < o.sockets; i++) {
		from[i] = o.from;
		if (addr_port(&o.from))
			set_port(&from[i], addr_port(&o.from) + i);
		fd[i] = rds_socket(&from[i]);
	}
	if (o.zcopy)
		zbuf = calloc(o.count, sizeof(*zbuf));
	else
		buf = malloc(o.size_hi + 1);
	t0 = now_us();
	for (n = 0; n < o.count; n++) {
		int s = n % o.sockets;
		uint64_t seq = o.first + n / o.sockets;
		size_t len = size_of(n);
		ssize_t r;

		if (o.zcopy) {
			/* zero-copy bytes must stay as they are until completion */
			if (posix_memalign((void **)&zbuf[n], 4096, len + 1))
				fail("memory");
			buf = zbuf[n];
		}
		fill(buf, len, seq);
		t1 = now_us();
		deadline = t1 + o.timeout_ms * 1000;
		while ((r = rds_send(fd[s], buf, len, &o.to, o.zcopy ? (int)n : -1)) < 0) {
			struct pollfd pf = { .fd = fd[s], .events = POLLOUT | POLLIN };
			int e = errno;

			if (!o.nonblock || (e != EAGAIN && e != ENOBUFS) ||
			    (o.timeout_ms && now_us() > deadline)) {
				errno = e;
				printf("stopped n=%" PRIu64 " after_ms=%lld\n", n, (now_us() - t1) / 1000);
				errno = e;
				fail("sendmsg to %s", show(&o.to));
			}
			if (!waits++ || o.verbose)
				printf("blocked n=%" PRIu64 " errno=%s\n", n,
				       e == EAGAIN ? "EAGAIN" : "ENOBUFS");
			fflush(stdout);
			poll(&pf, 1, 100);
			while (rds_recv(fd[s], back, o.bufsize, &src, &note, MSG_DONTWAIT) >= 0)
				take_note(&note);
			/* POLLOUT says nothing of the destination's congestion */
			nap(1);
		}
		/* the update may have come after the last look, and before the send */
		while (waits && o.nonblock && !o.echo &&
		       rds_recv(fd[s], back, o.bufsize, &src, &note, MSG_DONTWAIT) >= 0)
			take_note(&note);
		if ((size_t)r != len) {
			printf("short n=%" PRIu64 " sent=%zd of=%zu\n", n, r, len);
			errors++;
		}
		messages++;
		bytes += len;
		if (o.verbose)
			printf("sent n=%" PRIu64 " from=%s to=%s size=%zu us=%lld\n", n,
			       show(&from[s]), show(&o.to), len, now_us() - t1);
		if (o.echo) {
			ssize_t k;

			do {
				k = rds_recv(fd[s], back, o.bufsize, &src, &note, 0);
				if (k < 0)
					fail("echo of n=%" PRIu64, n);
				take_note(&note);
			} while (src.sa.sa_family == AF_UNSPEC);
			if ((size_t)k != len || memcmp(back, buf, len) || !same_addr(&src, &o.to)) {
				printf("bad-echo n=%" PRIu64 " size=%zd from=%s\n", n, k, show(&src));
				errors++;
			} else if (o.verbose) {
				printf("echo n=%" PRIu64 " us=%lld\n", n, now_us() - t1);
			}
		}
		if (n + 1 < o.count)
			nap(o.interval_ms);
		fflush(stdout);
	}
	if (o.zcopy) {
		deadline = now_us() + o.timeout_ms * 1000;
		while (completed < o.count && now_us() < deadline) {
			int got = 0;

			for (i = 0; i < o.sockets; i++) {
				while (rds_recv(fd[i], back, o.bufsize, &src, &note, MSG_DONTWAIT) >= 0) {
					take_note(&note);
					got++;
				}
			}
			if (!got)
				nap(5);
		}
		printf("zcopy completions=%" PRIu64 " of=%" PRIu64 "\n", completed, o.count);
		errors += completed != o.count;
	}
	summary("send", t0);
	fflush(stdout);
	if (!o.nodrain && !o.cancel && !o.linger_ms)
		drain(fd, from, o.sockets);
	if (o.cancel) {
		for (i = 0; i < o.sockets; i++) {
			if (setsockopt(fd[i], SOL_RDS, RDS_CANCEL_SENT_TO, &o.to, addr_len(&o.to)))
				fail("RDS_CANCEL_SENT_TO");
		}
		printf("cancelled to=%s\n", show(&o.to));
		fflush(stdout);
	}
	nap(o.linger_ms);
	return errors ? EX_FAILED : EX_GOOD;
}

/* --------------------------------------------------------- recv and echo -- */

#define MAX_SOURCES 4096
static struct { union addr addr; uint64_t next; } sources[MAX_SOURCES];
static int nsources;

static uint64_t *next_of(const union addr *a)
{
	int i;

	for (i = 0; i < nsources; i++) {
		if (same_addr(&sources[i].addr, a))
			return &sources[i].next;
	}
	if (nsources == MAX_SOURCES) {
		printf("error too many sources\n");
		exit(EX_FAILED);
	}
	sources[nsources].addr = *a;
	sources[nsources].next = o.first;
	return &sources[nsources++].next;
}

/* Checks a message, and returns its number. */
static uint64_t check(const unsigned char *buf, size_t len, const union addr *src)
{
	uint64_t *next = next_of(src), seq = *next;
	ssize_t bad;

	if (len >= 16 && !memcmp(buf, "KPR1", 4))
		seq = get_be(buf + 8, 8);
	if (seq != *next) {
		printf("gap from=%s want=%" PRIu64 " got=%" PRIu64 "\n", show(src), *next, seq);
		/* one that comes again or out of turn is always an error */
		if (!o.gaps || seq < *next)
			errors++;
	}
	bad = mismatch(buf, len, seq);
	if (bad >= 0) {
		printf("corrupt from=%s seq=%" PRIu64 " size=%zu at=%zd\n", show(src), seq, len, bad);
		errors++;
	}
	*next = seq + 1;
	return seq;
}

static int cmd_recv(int echo)
{
	int fd = rds_socket(&o.at), timed_out = 0;
	unsigned char *buf = malloc(o.bufsize);
	FILE *dump = NULL;
	long long t0;

	if (o.dump && !(dump = fopen(o.dump, "ab")))
		fail("%s", o.dump);
	printf("ready at=%s\n", show(&o.at));
	fflush(stdout);
	nap(o.delay_ms);
	t0 = now_us();
	while (!o.count || messages < o.count) {
		union addr src;
		struct note note;
		uint64_t seq = messages;
		ssize_t n = rds_recv(fd, buf, o.bufsize, &src, &note, 0);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN && errno != ETIMEDOUT)
				fail("recvmsg");
			timed_out = 1;
			break;
		}
		take_note(&note);
		if (src.sa.sa_family == AF_UNSPEC)
			continue;
		if (!messages)
			t0 = now_us();
		if (!o.noverify && !echo)
			seq = check(buf, n, &src);
		if (o.verbose)
			printf("recv n=%" PRIu64 " from=%s seq=%" PRIu64 " size=%zd%s\n", messages,
			       show(&src), seq, n, note.flags & MSG_TRUNC ? " truncated" : "");
		messages++;
		bytes += n;
		if (dump) {
			fwrite(buf, 1, n, dump);
			fflush(dump);
		}
		if (echo && rds_send(fd, buf, n, &src, -1) != n)
			fail("echo to %s", show(&src));
		fflush(stdout);
		nap(o.interval_ms);
	}
	summary(echo ? "echo" : "recv", t0);
	fflush(stdout);
	nap(o.linger_ms);
	if (errors)
		return EX_FAILED;
	return timed_out && o.count ? EX_TIMEOUT : EX_GOOD;
}

/* ------------------------------------------------------------------ ping -- */

static int cmd_ping(void)
{
	union addr src;
	struct note note;
	int fd = rds_socket(&o.from);
	long long t0 = now_us();
	uint64_t n;
	char c;

	set_port(&o.to, 0);
	for (n = 0; n < o.count; n++) {
		long long t1 = now_us();
		ssize_t r;

		if (rds_send(fd, &c, 0, &o.to, -1) != 0)
			fail("ping %s", show(&o.to));
		do {
			r = rds_recv(fd, &c, 1, &src, &note, 0);
			if (r < 0) {
				printf("lost n=%" PRIu64 "\n", n);
				fail("pong from %s", show(&o.to));
			}
		} while (src.sa.sa_family == AF_UNSPEC);
		messages++;
		printf("pong n=%" PRIu64 " from=%s size=%zd us=%lld\n", n, show(&src), r, now_us() - t1);
		fflush(stdout);
		if (n + 1 < o.count)
			nap(o.interval_ms < 0 ? 1000 : o.interval_ms);
	}
	summary("ping", t0);
	return EX_GOOD;
}

/* ------------------------------------------------------------------ info -- */

/* All records of one kind; the kernel returns the size of one. */
static void *info_get(int fd, int opt, int *each, int *count)
{
	socklen_t len = 65536;
	void *buf = NULL;
	int r, e;

	for (;;) {
		buf = realloc(buf, len);
		memset(buf, 0, len);
		r = getsockopt(fd, SOL_RDS, opt, buf, &len);
		e = errno;
		if (r >= 0 || e != ENOSPC)
			break;
		len += 65536;
	}
	*each = r;
	*count = r > 0 ? (int)(len / r) : 0;
	if (r < 0) {
		printf("info opt=%d unavailable: %s\n", opt, strerror(e));
		*count = 0;
	}
	return buf;
}

static const char *conn_flags(int f)
{
	static char s[8];

	snprintf(s, sizeof(s), "%c%c%c", f & RDS_INFO_CONNECTION_FLAG_SENDING ? 's' : '-',
		 f & RDS_INFO_CONNECTION_FLAG_CONNECTING ? 'c' : '-',
		 f & RDS_INFO_CONNECTION_FLAG_CONNECTED ? 'C' : '-');
	return s;
}

static void info_messages(int fd, int opt4, int opt6, const char *what)
{
	int each, n, i;
	char *p = info_get(fd, opt4, &each, &n);

	for (i = 0; i < n; i++) {
		struct rds_info_message *m = (void *)(p + (size_t)i * each);

		printf("%s seq=%" PRIu64 " len=%u from=%s:%d to=%s:%d flags=0x%02x tos=%d\n", what,
		       (uint64_t)m->seq, m->len, ip4(m->laddr), ntohs(m->lport), ip4(m->faddr),
		       ntohs(m->fport), m->flags, m->tos);
	}
	free(p);
	p = info_get(fd, opt6, &each, &n);
	for (i = 0; i < n; i++) {
		struct rds6_info_message *m = (void *)(p + (size_t)i * each);

		printf("%s6 seq=%" PRIu64 " len=%u from=[%s]:%d to=[%s]:%d flags=0x%02x tos=%d\n",
		       what, (uint64_t)m->seq, m->len, ip6(&m->laddr), ntohs(m->lport),
		       ip6(&m->faddr), ntohs(m->fport), m->flags, m->tos);
	}
	free(p);
}

static int cmd_info(int argc, char **argv)
{
	static char *all[] = { "counters", "conns", "sockets", "send", "retrans", "recv", "tcp" };
	int fd = socket(AF_RDS, SOCK_SEQPACKET, 0), k, each, n, i;
	char *p;

	if (fd < 0)
		fail("socket(PF_RDS)");
	if (!argc || !strcmp(argv[0], "all")) {
		argv = all;
		argc = sizeof(all) / sizeof(all[0]);
	}
	for (k = 0; k < argc; k++) {
		if (!strcmp(argv[k], "counters")) {
			p = info_get(fd, RDS_INFO_COUNTERS, &each, &n);
			for (i = 0; i < n; i++) {
				struct rds_info_counter *c = (void *)(p + (size_t)i * each);

				if (c->value || o.verbose)
					printf("counter %.32s %" PRIu64 "\n", c->name, (uint64_t)c->value);
			}
			free(p);
		} else if (!strcmp(argv[k], "conns")) {
			p = info_get(fd, RDS_INFO_CONNECTIONS, &each, &n);
			for (i = 0; i < n; i++) {
				struct rds_info_connection *c = (void *)(p + (size_t)i * each);

				printf("conn %s -> %s trans=%.16s tx=%" PRIu64 " rx=%" PRIu64
				       " flags=%s tos=%d\n", ip4(c->laddr), ip4(c->faddr), c->transport,
				       (uint64_t)c->next_tx_seq, (uint64_t)c->next_rx_seq,
				       conn_flags(c->flags), c->tos);
			}
			free(p);
			p = info_get(fd, RDS6_INFO_CONNECTIONS, &each, &n);
			for (i = 0; i < n; i++) {
				struct rds6_info_connection *c = (void *)(p + (size_t)i * each);

				printf("conn6 %s -> %s trans=%.16s tx=%" PRIu64 " rx=%" PRIu64
				       " flags=%s\n", ip6(&c->laddr), ip6(&c->faddr), c->transport,
				       (uint64_t)c->next_tx_seq, (uint64_t)c->next_rx_seq,
				       conn_flags(c->flags));
			}
			free(p);
		} else if (!strcmp(argv[k], "sockets")) {
			p = info_get(fd, RDS6_INFO_SOCKETS, &each, &n);
			for (i = 0; i < n; i++) {
				struct rds6_info_socket *s = (void *)(p + (size_t)i * each);

				printf("socket [%s]:%d -> [%s]:%d sndbuf=%u rcvbuf=%u inode=%" PRIu64 "\n",
				       ip6(&s->bound_addr), ntohs(s->bound_port), ip6(&s->connected_addr),
				       ntohs(s->connected_port), s->sndbuf, s->rcvbuf, (uint64_t)s->inum);
			}
			free(p);
		} else if (!strcmp(argv[k], "send")) {
			info_messages(fd, RDS_INFO_SEND_MESSAGES, RDS6_INFO_SEND_MESSAGES, "send");
		} else if (!strcmp(argv[k], "retrans")) {
			info_messages(fd, RDS_INFO_RETRANS_MESSAGES, RDS6_INFO_RETRANS_MESSAGES, "retrans");
		} else if (!strcmp(argv[k], "recv")) {
			info_messages(fd, RDS_INFO_RECV_MESSAGES, RDS6_INFO_RECV_MESSAGES, "recv");
		} else if (!strcmp(argv[k], "tcp")) {
			p = info_get(fd, RDS_INFO_TCP_SOCKETS, &each, &n);
			for (i = 0; i < n; i++) {
				struct rds_info_tcp_socket *t = (void *)(p + (size_t)i * each);

				printf("tcp %s:%d -> %s:%d hdr_rem=%" PRIu64 " data_rem=%" PRIu64
				       " sent_nxt=%u expected_una=%u seen_una=%u\n", ip4(t->local_addr),
				       ntohs(t->local_port), ip4(t->peer_addr), ntohs(t->peer_port),
				       (uint64_t)t->hdr_rem, (uint64_t)t->data_rem, t->last_sent_nxt,
				       t->last_expected_una, t->last_seen_una);
			}
			free(p);
			p = info_get(fd, RDS6_INFO_TCP_SOCKETS, &each, &n);
			for (i = 0; i < n; i++) {
				struct rds6_info_tcp_socket *t = (void *)(p + (size_t)i * each);

				printf("tcp6 [%s]:%d -> [%s]:%d hdr_rem=%" PRIu64 " data_rem=%" PRIu64
				       " sent_nxt=%u expected_una=%u seen_una=%u\n", ip6(&t->local_addr),
				       ntohs(t->local_port), ip6(&t->peer_addr), ntohs(t->peer_port),
				       (uint64_t)t->hdr_rem, (uint64_t)t->data_rem, t->last_sent_nxt,
				       t->last_expected_una, t->last_seen_una);
			}
			free(p);
		} else {
			usage(stderr);
			return EX_USAGE;
		}
	}
	return EX_GOOD;
}

/* ------------------------------------------------------------------ main -- */

static uint64_t number(const char *s)
{
	char *end;
	uint64_t v = strtoull(s, &end, 0);

	if (*end == 'k' || *end == 'K')
		v <<= 10, end++;
	else if (*end == 'm' || *end == 'M')
		v <<= 20, end++;
	if (*end && *end != '-' && *end != ',') {
		fprintf(stderr, "kpeer: bad number %s\n", s);
		exit(EX_USAGE);
	}
	return v;
}

/* The list A,B,...; the largest of them becomes the size of the buffer. */
static void parse_sizes(char *s)
{
	o.nsizes = 0;
	if (!strchr(s, ','))
		return;
	for (; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		if (o.nsizes == MAX_SIZES) {
			fprintf(stderr, "kpeer: more than %d sizes\n", MAX_SIZES);
			exit(EX_USAGE);
		}
		o.sizes[o.nsizes] = number(s);
		if (o.sizes[o.nsizes] > o.size_hi)
			o.size_hi = o.sizes[o.nsizes];
		o.nsizes++;
	}
}

int main(int argc, char **argv)
{
	enum { FROM = 256, TO, AT, SIZE, COUNT, FIRST, SOCKETS, INTERVAL, LINGER, DELAY, TIMEOUT,
	       ECHO_, ZCOPY, NONBLOCK, NODRAIN, CONG, CANCEL, TOS, GAPS, NOVERIFY, DUMP, SEED, SNDBUF,
	       RCVBUF, BUFSIZE, TCP };
	static const struct option opts[] = {
		{ "from", 1, 0, FROM }, { "to", 1, 0, TO }, { "at", 1, 0, AT },
		{ "size", 1, 0, SIZE }, { "count", 1, 0, COUNT }, { "first", 1, 0, FIRST },
		{ "sockets", 1, 0, SOCKETS }, { "interval-ms", 1, 0, INTERVAL },
		{ "linger-ms", 1, 0, LINGER }, { "delay-ms", 1, 0, DELAY },
		{ "timeout-ms", 1, 0, TIMEOUT }, { "echo", 0, 0, ECHO_ }, { "zcopy", 0, 0, ZCOPY },
		{ "nonblock", 0, 0, NONBLOCK }, { "no-drain", 0, 0, NODRAIN }, { "cong-monitor", 0, 0, CONG },
		{ "cancel", 0, 0, CANCEL }, { "tos", 1, 0, TOS }, { "allow-gaps", 0, 0, GAPS },
		{ "no-verify", 0, 0, NOVERIFY }, { "dump", 1, 0, DUMP }, { "seed", 1, 0, SEED },
		{ "sndbuf", 1, 0, SNDBUF }, { "rcvbuf", 1, 0, RCVBUF },
		{ "bufsize", 1, 0, BUFSIZE }, { "tcp", 0, 0, TCP }, { 0 }
	};
	const char *cmd = argc > 1 ? argv[1] : "";
	int c, ping = !strcmp(cmd, "ping"), have = 0;
	char *dash;

	if (argc < 2 || !strcmp(cmd, "help") || !strcmp(cmd, "--help")) {
		usage(argc < 2 ? stderr : stdout);
		return argc < 2 ? EX_USAGE : EX_GOOD;
	}
	optind = 2;
	while ((c = getopt_long(argc, argv, "v", opts, NULL)) != -1) {
		switch (c) {
		case FROM: o.from = parse_addr(optarg, !ping); have |= 1; break;
		case TO: o.to = parse_addr(optarg, !ping); have |= 2; break;
		case AT: o.at = parse_addr(optarg, 1); have |= 4; break;
		case SIZE:
			o.size_lo = o.size_hi = number(optarg);
			dash = strchr(optarg, '-');
			if (dash)
				o.size_hi = number(dash + 1);
			parse_sizes(optarg);
			if (o.size_hi < o.size_lo) {
				usage(stderr);
				return EX_USAGE;
			}
			break;
		case COUNT: o.count = number(optarg); break;
		case FIRST: o.first = number(optarg); break;
		case SOCKETS: o.sockets = number(optarg); break;
		case INTERVAL: o.interval_ms = number(optarg); break;
		case LINGER: o.linger_ms = number(optarg); break;
		case DELAY: o.delay_ms = number(optarg); break;
		case TIMEOUT: o.timeout_ms = number(optarg); break;
		case ECHO_: o.echo = 1; break;
		case ZCOPY: o.zcopy = 1; break;
		case NONBLOCK: o.nonblock = 1; break;
		case NODRAIN: o.nodrain = 1; break;
		case CONG: o.monitor = 1; break;
		case CANCEL: o.cancel = 1; break;
		case TOS: o.tos = number(optarg); break;
		case GAPS: o.gaps = 1; break;
		case NOVERIFY: o.noverify = 1; break;
		case DUMP: o.dump = optarg; break;
		case SEED: o.seed = number(optarg); break;
		case SNDBUF: o.sndbuf = number(optarg); break;
		case RCVBUF: o.rcvbuf = number(optarg); break;
		case BUFSIZE: o.bufsize = number(optarg); break;
		case TCP: o.pin = 1; break;
		case 'v': o.verbose = 1; break;
		default: usage(stderr); return EX_USAGE;
		}
	}
	if (!strcmp(cmd, "info"))
		return cmd_info(argc - optind, argv + optind);
	if (!strcmp(cmd, "send") && (have & 3) == 3 && o.sockets > 0)
		return cmd_send();
	if (ping && (have & 3) == 3)
		return cmd_ping();
	if (!strcmp(cmd, "recv") && have & 4)
		return cmd_recv(0);
	if (!strcmp(cmd, "echo") && have & 4)
		return cmd_recv(1);
	if (!strcmp(cmd, "bind") && have & 4) {
		rds_socket(&o.at);
		printf("ready at=%s\n", show(&o.at));
		fflush(stdout);
		nap(o.linger_ms ? o.linger_ms : 3600000);
		return EX_GOOD;
	}
	usage(stderr);
	return EX_USAGE;
}
