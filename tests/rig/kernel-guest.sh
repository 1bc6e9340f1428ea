#!/usr/bin/env bash
# kernel-guest.sh - virtual machines whose kernel speaks RDS over TCP.
#
# Boots Debian kernels with the rds and rds_tcp modules under QEMU, on a bridge
# in a network namespace of its own, so that a userspace RDS-over-TCP program
# in that namespace can be tested against the kernel's implementation.
#
#   kernel-guest.sh start [COUNT] [--mtu N] [--kernel PKG] [--mem MIB] [--smp N]
#   kernel-guest.sh exec [-i] N CMD [ARG...]   run in guest N (one word: a shell line)
#   kernel-guest.sh run CMD [ARG...]           run in the namespace, on the host side
#   kernel-guest.sh put N FILE PATH            copy a file into guest N
#   kernel-guest.sh get N PATH FILE            copy a file out of guest N
#   kernel-guest.sh link N up|down             plug or unplug guest N's cable
#   kernel-guest.sh pause N | resume N         freeze guest N, let it go on
#   kernel-guest.sh kill N | boot N            crash guest N at once, boot it anew
#   kernel-guest.sh capture FILE [FILTER]      record the bridge's packets ...
#   kernel-guest.sh capture-stop               ... until now
#   kernel-guest.sh console N                  guest N's kernel log so far
#   kernel-guest.sh status | stop
#   kernel-guest.sh deps | build [--kernel PKG] [--update]
#
# Addresses: guest N has 10.77.0.(N+1)/24 and fd77::(N+1)/64.  The host side
# has two of each, 10.77.0.1 and 10.77.0.201, fd77::1 and fd77::c9, one below
# and one above every guest's: in RDS over TCP the lower address of a pair has
# a different part from the higher one's.
#
# Needs: root, Debian 12 on amd64 and its package archive.  `start` does all
# that is missing: it installs the packages in DEPS with apt-get, downloads the
# kernel package without installing it, and builds the guest image in the
# cache.  A second start takes everything from there.
#
# Kernels (--kernel, or KG_KERNEL):
#   6.1        Debian 12's
#   6.12       Debian 12's newer one
#   newest     the newest that Debian carries: unstable's, of which apt gets a
#              list of its own; no setting of the machine's apt changes
#   a package, or a folder with the .deb files of one kernel
#
# Environment (defaults):
#   KG_NAME    kg           name of this set of guests, and of its namespace
#   KG_KERNEL  6.1          kernel where none is named
#   KG_CACHE   ~/.cache/rds-kernel-guest
#   KG_RUN     /tmp/kernel-guest-$KG_NAME
#   KG_ACCEL   auto         kvm, tcg, or auto: kvm where the CPU has it
#   KG_MODULES ''           more kernel modules for the image
#   KG_FILES   ''           more host files for the image, with their libraries
#   KG_TIMEOUT 120          seconds that a guest may take to boot
set -euo pipefail

KG_NAME=${KG_NAME:-kg}
KG_KERNEL=${KG_KERNEL:-6.1}
KG_CACHE=${KG_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/rds-kernel-guest}
KG_RUN=${KG_RUN:-/tmp/kernel-guest-$KG_NAME}
KG_ACCEL=${KG_ACCEL:-auto}
KG_MODULES=${KG_MODULES:-}
KG_FILES=${KG_FILES:-}
KG_TIMEOUT=${KG_TIMEOUT:-120}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SELF=$HERE/$(basename "${BASH_SOURCE[0]}")
SRC=$HERE
NET4=10.77.0
NET6=fd77:
PORTS=8                      # commands that can run in one guest at a time
DEPS=(qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 dash gcc libc6-dev
	linux-libc-dev tcpdump)
BOOT_MODULES=(virtio_pci virtio_net virtio_console rds rds_tcp)
MORE_MODULES=(tcp_diag inet_diag sch_netem sch_tbf veth dummy bridge)
GUEST_TOOLS=(dash ip ss tc)

say() { echo "kernel-guest: $*" >&2; }
die() { say "$*"; exit 1; }

need_root() { [ "$(id -u)" = 0 ] || die "must be run as root"; }

guest_dir() {
	[[ $1 =~ ^[1-9][0-9]*$ ]] || die "not a guest number: $1"
	[ -d "$KG_RUN/g$1" ] || die "there is no guest $1 (start it first)"
	echo "$KG_RUN/g$1"
}

# ------------------------------------------------------------------ packages

install_deps() {
	local p missing=()
	for p in "${DEPS[@]}"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
			missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	need_root
	say "installing Debian packages: ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
		apt-get update >/dev/null
		apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null
	}
}

# The package that KG_KERNEL means.
kernel_package() {
	case $KG_KERNEL in
	6.1 | newest) echo linux-image-cloud-amd64 ;;
	6.12) echo linux-image-6.12-cloud-amd64 ;;
	*) echo "$KG_KERNEL" ;;
	esac
}

# apt-get and apt-cache: of this machine, or for `newest` with the package
# lists of Debian unstable in the cache, where nothing is ever installed from.
apt() {                                  # get|cache ARG...
	local tool=apt-$1 dir=$KG_CACHE/apt options=(-o APT::Sandbox::User=root)
	shift
	if [ "$KG_KERNEL" = newest ]; then
		mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
		local mirror
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
			'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1)
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
			"${mirror:-http://deb.debian.org/debian} unstable main" >"$dir/sources.list"
		options+=(-o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=-
			-o "Dir::State::lists=$dir/lists" -o Dir::State::status=/dev/null
			-o "Dir::Cache=$dir/cache" -o APT::Default-Release=
			# a mirror that stands still is good enough for a kernel to test with
			-o Acquire::Check-Valid-Until=false -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
	fi
	"$tool" "${options[@]}" "$@"
}

# What package $1 depends on that matches $2.
depends() {
	apt cache depends --no-recommends --no-suggests "$1" 2>/dev/null |
		sed -n "s/^ *Depends: \($2\)\$/\1/p"
}

# The packages that really hold the kernel: a meta package depends on one, and
# newer kernels have modules and image in packages of their own.
kernel_packages() {
	local package
	package=$(depends "$1" 'linux-image-[0-9].*' | head -n 1)
	package=${package:-$1}
	echo "$package"
	depends "$package" 'linux-\(modules\|binary\)-[0-9].*'
}

# --------------------------------------------------------------------- image

copy_with_libs() {                       # FILE TREE
	local file=$1 tree=$2 lib
	install -D "$file" "$tree/$file"
	ldd "$file" 2>/dev/null | grep -o '/[^ ]*' | while read -r lib; do
		[ -e "$tree/$lib" ] || install -D "$lib" "$tree/$lib"
	done || true            # a static program has none
}

write_init() {                           # TREE
	cat >"$1/init" <<'EOF'
#!/bin/sh
export PATH=/bin:/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /tmp
mount -t devpts devpts /dev/pts
for word in $(cat /proc/cmdline); do
	case $word in
	kg.n=*) n=${word#*=} ;;
	kg.ip=*) ip=${word#*=} ;;
	kg.ip6=*) ip6=${word#*=} ;;
	kg.mtu=*) mtu=${word#*=} ;;
	esac
done
hostname "kg${n:-0}"
for m in $(cat /etc/modules.boot); do
	modprobe "$m" || echo "kernel-guest: cannot load $m"
done
# room for large RDS messages: one may not exceed its socket's send buffer
echo 16777216 >/proc/sys/net/core/wmem_max
echo 16777216 >/proc/sys/net/core/rmem_max
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
	ip link set eth0 mtu "${mtu:-1500}"
	# IPv6 addresses outlive a link that goes down, as IPv4's do
	echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down
	echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_ra
	ip link set eth0 up
	[ -z "$ip" ] || ip addr add "$ip" dev eth0
	[ -z "$ip6" ] || ip -6 addr add "$ip6" dev eth0 nodad
fi
echo "kernel-guest: guest ${n:-0} ready after $(cut -d' ' -f1 /proc/uptime) s, $(uname -r)"
exec vexec serve
EOF
	chmod 755 "$1/init"
}

img_dir() { echo "$KG_CACHE/$(basename "$KG_KERNEL")"; }

fetch_kernel() {                         # DIR: unpack the kernel into DIR/unpacked
	local dir=$1 packages f
	rm -rf "$dir/deb" "$dir/unpacked"
	mkdir -p "$dir/deb" "$dir/unpacked"
	if [ -d "$KG_KERNEL" ]; then
		cp "$KG_KERNEL"/*.deb "$dir/deb/"
	else
		# apt checks their sums, and the signature of the list that has those
		if [ "$KG_KERNEL" = newest ] || [ -z "$(apt cache show "$(kernel_package)" 2>/dev/null)" ]; then
			apt get update >/dev/null || die "no package list for kernel $KG_KERNEL"
		fi
		packages=$(kernel_packages "$(kernel_package)")
		say "downloading" $packages
		(
			cd "$dir/deb"
			# shellcheck disable=SC2086
			get() { apt get -qq download $packages; }
			get 2>/dev/null || { apt get update >/dev/null; get; } ||
				die "kernel $KG_KERNEL cannot be downloaded"
		)
	fi
	for f in "$dir"/deb/*.deb; do
		dpkg -x "$f" "$dir/unpacked"
		case $f in
		*/linux-image-*) dpkg-deb -W --showformat '${Package} ${Version}\n' "$f" >"$dir/unpacked/package" ;;
		esac
	done
	# some packages have the modules below /usr, where tools find them by a link
	if [ ! -d "$dir/unpacked/lib/modules" ] && [ -d "$dir/unpacked/usr/lib/modules" ]; then
		rm -rf "$dir/unpacked/lib"
		ln -s usr/lib "$dir/unpacked/lib"
	fi
	rm -rf "$dir/deb"
	touch "$dir/unpacked/ok"
}

build_image() {                          # [--update]
	local update=${1:-} dir unpacked release vmlinuz m f tree stamp
	dir=$(img_dir)
	# rebuilt when anything that goes into it has changed
	stamp=$(cat "$SELF" "$SRC"/*.c | sha256sum | cut -c1-16)-$(
		echo "$KG_MODULES|$KG_FILES" | sha256sum | cut -c1-8)
	is_built() {
		[ -z "$update" ] && [ -e "$dir/initramfs.gz" ] && [ -e "$dir/vmlinuz" ] &&
			[ "$(cat "$dir/stamp" 2>/dev/null)" = "$stamp" ]
	}
	! is_built || return 0
	mkdir -p "$dir"
	# one lock for all kernels: apt and dpkg do not like company either
	exec 8>"$KG_CACHE/lock"
	flock 8
	! is_built || return 0
	install_deps
	if [ -n "$update" ] || [ ! -e "$dir/unpacked/ok" ]; then
		fetch_kernel "$dir"
	fi
	unpacked=$dir/unpacked
	release=$(ls "$unpacked/lib/modules")
	vmlinuz=$unpacked/boot/vmlinuz-$release
	[ -e "$vmlinuz" ] || vmlinuz=$unpacked/lib/modules/$release/vmlinuz
	[ -e "$vmlinuz" ] || die "no kernel in $KG_KERNEL"
	depmod -b "$unpacked" "$release" 2>/dev/null

	tree=$dir/tree
	rm -rf "$tree"
	mkdir -p "$tree"/{bin,sbin,dev,proc,sys,tmp,etc,root,run} "$tree/lib/modules/$release"
	install "$(command -v busybox)" "$tree/bin/busybox"
	for f in $(busybox --list); do
		[ -e "$tree/bin/$f" ] || ln -s busybox "$tree/bin/$f"
	done
	for f in "${GUEST_TOOLS[@]}" $KG_FILES; do
		case $f in
		/*) ;;
		*) f=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin type -P "$f") ;;
		esac
		copy_with_libs "$f" "$tree"
		ln -sf "$f" "$tree/bin/$(basename "$f")"
	done
	# busybox's shell would run its own ip and tc whatever is in PATH
	ln -sf dash "$tree/bin/sh"
	for f in "$SRC"/*.c; do
		gcc -O2 -Wall -static -o "$tree/bin/$(basename "$f" .c)" "$f"
	done
	install "$tree/bin/vexec" "$dir/vexec.new"
	mv "$dir/vexec.new" "$dir/vexec"

	# the modules with all that they depend on, uncompressed
	for m in "${BOOT_MODULES[@]}" "${MORE_MODULES[@]}" $KG_MODULES; do
		modprobe -d "$unpacked" -S "$release" --show-depends "$m" 2>/dev/null ||
			say "this kernel has no module $m"
	done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r f; do
		m=$tree/lib/modules/$release/$(basename "$f")
		case $f in
		*.xz) xz -dc "$f" >"${m%.xz}" ;;
		*.gz) gzip -dc "$f" >"${m%.gz}" ;;
		*.zst) zstd -dcq "$f" >"${m%.zst}" ;;
		*) cp "$f" "$m" ;;
		esac
	done
	cp "$unpacked/lib/modules/$release"/modules.{order,builtin,builtin.modinfo} \
		"$tree/lib/modules/$release/" 2>/dev/null || true
	depmod -b "$tree" "$release" 2>/dev/null
	for m in "${BOOT_MODULES[@]}"; do
		# those that this kernel has as modules, not built in
		grep -q "/$m\.ko:\|^$m\.ko:" "$tree/lib/modules/$release/modules.dep" && echo "$m"
	done >"$tree/etc/modules.boot" || true
	[ -e "$tree/lib/modules/$release/rds_tcp.ko" ] || die "$KG_KERNEL has no rds_tcp module"
	write_init "$tree"
	(cd "$tree" && find . | cpio -o -H newc --quiet) | gzip -1 >"$dir/initramfs.gz.new"
	cp "$vmlinuz" "$dir/vmlinuz.new"
	mv "$dir/vmlinuz.new" "$dir/vmlinuz"
	mv "$dir/initramfs.gz.new" "$dir/initramfs.gz"
	rm -rf "$tree"
	echo "$stamp" >"$dir/stamp"
	flock -u 8
	exec 8>&-
	say "image ready: $(cat "$unpacked/package"), $(du -k "$dir/initramfs.gz" | cut -f1) KiB initramfs"
}

# -------------------------------------------------------------------- guests

accel_args() {
	local accel=$KG_ACCEL
	if [ "$accel" = auto ]; then
		# /dev/kvm alone says little: a nested hypervisor without the
		# CPU's help offers it too, and an ordinary kernel hangs there
		if [ -w /dev/kvm ] && { [ -d /sys/module/kvm_intel ] || [ -d /sys/module/kvm_amd ]; } &&
			grep -qwE 'vmx|svm' /proc/cpuinfo; then
			accel=kvm
		else
			accel=tcg
		fi
	fi
	case $accel in
	kvm) echo "-accel kvm -cpu host" ;;
	tcg) echo "-accel tcg,thread=multi,tb-size=256 -cpu max" ;;
	*) die "KG_ACCEL must be auto, kvm or tcg" ;;
	esac
}

in_ns() { ip netns exec "$KG_NAME" "$@"; }

make_namespace() {                       # MTU
	local a
	ip netns add "$KG_NAME"
	ip -n "$KG_NAME" link set lo up
	ip -n "$KG_NAME" link add br0 type bridge forward_delay 0 mcast_snooping 0
	in_ns sh -c 'echo 0 >/proc/sys/net/ipv6/conf/all/accept_ra
		echo 0 >/proc/sys/net/ipv6/conf/br0/accept_ra
		echo 1 >/proc/sys/net/ipv6/conf/br0/keep_addr_on_down'
	ip -n "$KG_NAME" link set br0 mtu "$1" up
	for a in 1 201; do
		ip -n "$KG_NAME" addr add "$NET4.$a/24" dev br0
		ip -n "$KG_NAME" -6 addr add "$(printf '%s:%x/64' "$NET6" "$a")" dev br0 nodad
	done
}

boot_guest() {                           # N
	local n=$1 dir=$KG_RUN/g$1 img i args=() accel
	# shellcheck source=/dev/null
	. "$KG_RUN/settings"
	img=$(img_dir)
	mkdir -p "$dir"
	rm -f "$dir"/ctl*.sock "$dir/pid"
	if ! ip -n "$KG_NAME" link show "tap$n" >/dev/null 2>&1; then
		ip -n "$KG_NAME" tuntap add dev "tap$n" mode tap
		ip -n "$KG_NAME" link set "tap$n" mtu "$MTU" master br0
	fi
	ip -n "$KG_NAME" link set "tap$n" up
	for ((i = 1; i <= PORTS; i++)); do
		args+=(-chardev "socket,id=c$i,path=$dir/ctl$i.sock,server=on,wait=off"
			-device "virtserialport,chardev=c$i,nr=$i,name=kg.$i")
	done
	accel=$(accel_args)
	# shellcheck disable=SC2086
	in_ns qemu-system-x86_64 -name "$KG_NAME-g$n" $accel -machine q35 \
		-smp "$SMP" -m "$MEM" -nodefaults -no-user-config -display none -no-reboot \
		-kernel "$img/vmlinuz" -initrd "$img/initramfs.gz" \
		-append "console=ttyS0 panic=-1 quiet loglevel=4 kg.n=$n kg.ip=$NET4.$((n + 1))/24 kg.ip6=$(printf '%s:%x' "$NET6" $((n + 1)))/64 kg.mtu=$MTU" \
		-serial "file:$dir/console.log" \
		-netdev "tap,id=n0,ifname=tap$n,script=no,downscript=no" \
		-device "virtio-net-pci,netdev=n0,romfile=,mac=$(printf '52:54:00:77:00:%02x' $((n + 1)))" \
		-device virtio-serial-pci,max_ports=$((PORTS + 1)) "${args[@]}" \
		-pidfile "$dir/pid" -daemonize
}

wait_guest() {                           # N
	"$(img_dir)/vexec" host -t "$KG_TIMEOUT" "$KG_RUN/g$1" true || {
		tail -n 20 "$KG_RUN/g$1/console.log" >&2 || true
		die "guest $1 did not come up"
	}
}

# Waits for guest N, which has been booted.  An emulated kernel was seen to fail
# while it booted: it gets a second try.
come_up() {                              # N
	(wait_guest "$1") || {
		say "booting guest $1 once more"
		end_guest "$1" KILL
		boot_guest "$1"
		wait_guest "$1"
	}
}

# The process id of guest N, if it is running and really ours.
guest_pid() {
	local pid
	pid=$(cat "$KG_RUN/g$1/pid" 2>/dev/null) || return 1
	tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF "$KG_RUN/g$1/pid" || return 1
	echo "$pid"
}

end_guest() {                            # N SIGNAL
	local pid i
	pid=$(guest_pid "$1") || return 0
	kill -CONT "$pid" 2>/dev/null || true
	kill "-$2" "$pid" 2>/dev/null || true
	for ((i = 0; i < 100; i++)); do
		guest_pid "$1" >/dev/null || break
		[ "$i" != 50 ] || kill -KILL "$pid" 2>/dev/null || true
		sleep 0.05
	done
	rm -f "$KG_RUN/g$1/pid"
}

cmd_start() {
	local count=1 mtu=1500 mem=512 smp=1 n t0
	while [ $# -gt 0 ]; do
		case $1 in
		--mtu) mtu=$2; shift ;;
		--mem) mem=$2; shift ;;
		--smp) smp=$2; shift ;;
		--kernel) KG_KERNEL=$2; shift ;;
		[1-9]*) count=$1 ;;
		*) die "start: unknown argument $1" ;;
		esac
		shift
	done
	need_root
	[ ! -e "$KG_RUN/settings" ] || die "already started (stop it first)"
	if ip netns list 2>/dev/null | grep -qw "^$KG_NAME"; then
		die "a network namespace $KG_NAME exists already"
	fi
	[ ! -d "$KG_KERNEL" ] || KG_KERNEL=$(cd "$KG_KERNEL" && pwd)
	build_image
	mkdir -p "$KG_RUN"
	printf 'MTU=%q MEM=%q SMP=%q KG_KERNEL=%q KG_CACHE=%q\n' \
		"$mtu" "$mem" "$smp" "$KG_KERNEL" "$KG_CACHE" >"$KG_RUN/settings"
	trap 'say "start failed"; cmd_stop' EXIT
	make_namespace "$mtu"
	t0=$(date +%s%N)
	for ((n = 1; n <= count; n++)); do boot_guest "$n"; done
	for ((n = 1; n <= count; n++)); do come_up "$n"; done
	trap - EXIT
	say "$count guest(s) up in $((($(date +%s%N) - t0) / 1000000)) ms:" \
		"$(cat "$(img_dir)/unpacked/package"), $(accel_args | cut -d' ' -f2 | cut -d, -f1), mtu $mtu"
}

load_settings() {
	[ -e "$KG_RUN/settings" ] || die "not started"
	# shellcheck source=/dev/null
	. "$KG_RUN/settings"
}

cmd_exec() {
	local flags=() dir
	while [ "${1:-}" = -i ]; do flags+=(-i); shift; done
	[ $# -ge 2 ] || die "usage: exec [-i] N CMD [ARG...]"
	dir=$(guest_dir "$1")
	shift
	exec "$(img_dir)/vexec" host "${flags[@]}" "$dir" "$@"
}

cmd_stop() {
	local d n pid
	need_root
	stop_capture
	for d in "$KG_RUN"/g*; do
		[ -d "$d" ] || continue
		n=${d##*/g}
		end_guest "$n" TERM
	done
	if ip netns list 2>/dev/null | grep -qw "^$KG_NAME"; then
		for n in 1 2 3 4 5; do          # a guest just ended may take a moment to go
			pid=$(ip netns pids "$KG_NAME" | tr '\n' ' ')
			[ -n "$pid" ] || break
			sleep 0.2
		done
		[ -z "$pid" ] || say "still running in namespace $KG_NAME, left alone: $pid"
		ip netns del "$KG_NAME"
	fi
	rm -rf "$KG_RUN"
}

stop_capture() {
	local pid i
	pid=$(cat "$KG_RUN/capture.pid" 2>/dev/null) || return 0
	rm -f "$KG_RUN/capture.pid"
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = tcpdump ] || return 0
	sleep 0.3            # let the last packets reach it
	kill -TERM "$pid" 2>/dev/null || true
	for ((i = 0; i < 60; i++)); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.05
	done
}

cmd_capture() {
	local file=$1 i
	shift
	stop_capture
	rm -f "$file"
	: >"$KG_RUN/capture.log"
	# not through in_ns: $! has to be tcpdump's own process id
	ip netns exec "$KG_NAME" tcpdump -Z root -i br0 -n -U --immediate-mode -B 16384 \
		-c 400000 -w "$file" "${*:-tcp port 16385}" >"$KG_RUN/capture.log" 2>&1 &
	echo $! >"$KG_RUN/capture.pid"
	disown
	for ((i = 0; i < 100; i++)); do
		! grep -q 'listening on' "$KG_RUN/capture.log" || return 0
		kill -0 "$(cat "$KG_RUN/capture.pid")" 2>/dev/null || die "$(cat "$KG_RUN/capture.log")"
		sleep 0.05
	done
	die "tcpdump did not start"
}

cmd_status() {
	local d n
	[ -e "$KG_RUN/settings" ] || { echo "$KG_NAME: not started"; return 0; }
	echo "$KG_NAME: $(cat "$KG_RUN/settings")"
	for d in "$KG_RUN"/g*; do
		[ -d "$d" ] || continue
		n=${d##*/g}
		echo "guest $n: $NET4.$((n + 1)) $(guest_pid "$n" >/dev/null && echo "running, pid $(guest_pid "$n")" || echo down)"
	done
}

verb=${1:-help}
[ $# -eq 0 ] || shift
case $verb in
deps) install_deps ;;
build)
	update=
	while [ $# -gt 0 ]; do
		case $1 in
		--kernel) KG_KERNEL=$2; shift ;;
		--update) update=$1 ;;
		*) die "build: unknown argument $1" ;;
		esac
		shift
	done
	build_image "$update"
	;;
start) cmd_start "$@" ;;
stop) cmd_stop ;;
status) cmd_status ;;
exec) load_settings; cmd_exec "$@" ;;
run) load_settings; in_ns "$@" ;;
put) load_settings; cmd_exec -i "$1" sh -c 'cat >"$1"' sh "$3" <"$2" ;;
get) load_settings; (cmd_exec "$1" cat "$2") >"$3" ;;
link) load_settings; guest_dir "$1" >/dev/null; ip -n "$KG_NAME" link set "tap$1" "$2" ;;
pause) load_settings; kill -STOP "$(guest_pid "$1")" ;;
resume) load_settings; kill -CONT "$(guest_pid "$1")" ;;
kill) load_settings; guest_dir "$1" >/dev/null; end_guest "$1" KILL ;;
boot) load_settings; guest_pid "$1" >/dev/null && die "guest $1 is running"; boot_guest "$1"; come_up "$1" ;;
capture) load_settings; cmd_capture "$@" ;;
capture-stop) load_settings; stop_capture ;;
console) load_settings; cat "$(guest_dir "$1")/console.log" ;;
help | -h | --help) sed -n '2,/^set -euo/{/^set/d;s/^# \{0,1\}//;p}' "$SELF" ;;
*) die "unknown command $verb (try help)" ;;
esac
