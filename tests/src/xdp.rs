//! A path on which the kernel does not copy: XDP_PASS on `lo`.
//!
//! Loopback copies the pages of a MSG_ZEROCOPY send when it delivers them, and says so in the notification
//! (SO_EE_CODE_ZEROCOPY_COPIED). An XDP program in generic mode sits before that point and takes the packet into memory of its
//! own, so the notification comes without the code, as from a network card.

use std::process::Output;

use crate::netns::Namespace;
use crate::skip::Unavailable;

/// Name of the program's section, by which libbpf knows what it is for. It must be able to take packets of several fragments: for one
/// that is not, the kernel makes the packet linear, which still counts as copying the sender's pages (Linux `net/core/dev.c`).
const SECTION: &str = "xdp.frags";

/// XDP_PASS on a namespace's `lo`, until this is dropped. Connections that are open see the change at once.
#[derive(Debug)]
pub struct XdpPass<'n> {
    namespace: &'n Namespace,
}

impl<'n> XdpPass<'n> {
    /// Attaches it, in generic mode.
    ///
    /// # Errors
    /// The kernel is older than 6.9, ip(8) is built without libbpf, or the process may not load programs.
    ///
    /// # Panics
    /// The kernel or ip(8) finds fault with the program; a program is attached already.
    pub fn attach(namespace: &'n Namespace) -> Result<Self, Unavailable> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel has a release");
        if release(&kernel).is_some_and(|r| r < (6, 9)) {
            let why = format!("generic XDP of Linux {} knows no fragments", kernel.trim());
            return Err(Unavailable::because(why));
        }
        let version = namespace.ip(&["-V"]).expect("the namespace was made with ip(8)");
        let version = String::from_utf8_lossy(&version.stdout);
        if !version.contains("libbpf") {
            return Err(Unavailable::because(format!("no libbpf in {}", version.trim())));
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("pass.o");
        std::fs::write(&file, program()).expect("room for a few hundred bytes");
        let file = file.to_str().expect("a name in UTF-8");
        let attached = set(namespace, &["xdpgeneric", "object", file, "section", SECTION]);
        let errors = String::from_utf8_lossy(&attached.stderr);
        if attached.status.success() {
            Ok(Self { namespace })
        } else if errors.contains("not permitted") {
            Err(Unavailable::because(format!("no XDP program may be loaded: {}", errors.trim())))
        } else {
            panic!("ip(8) does not attach the XDP program: {errors}");
        }
    }

    /// Takes it off: from now on the kernel copies again.
    pub fn detach(self) {
        // Dropping it does.
    }
}

impl Drop for XdpPass<'_> {
    fn drop(&mut self) {
        let off = set(self.namespace, &["xdpgeneric", "off"]);
        if !off.status.success() && !std::thread::panicking() {
            panic!("the XDP program stays: {}", String::from_utf8_lossy(&off.stderr));
        }
    }
}

/// Major and minor number of a kernel's release, such as 6.12.3-arch1.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn set(namespace: &Namespace, what: &[&str]) -> Output {
    let all = [&["link", "set", "dev", "lo"], what].concat();
    namespace.ip(&all).expect("the namespace was made with ip(8)")
}

/// An ELF object as `clang -target bpf` makes it of `return XDP_PASS;`: the program, its licence, and a symbol, by which libbpf
/// finds programs (gABI; Linux `Documentation/bpf/standardization/instruction-set.rst`).
fn program() -> Vec<u8> {
    const CODE: [u8; 16] = [
        0xb7, 0, 0, 0, 2, 0, 0, 0, // BPF_ALU64 | BPF_MOV | BPF_K: r0 = XDP_PASS
        0x95, 0, 0, 0, 0, 0, 0, 0, // BPF_JMP | BPF_EXIT
    ];
    const HEADER: u64 = 64;
    const PROGBITS: u32 = 1;
    const SYMTAB: u32 = 2;
    const STRTAB: u32 = 3;
    const ALLOC: u64 = 2;
    const EXECINSTR: u64 = 4;

    // Names of sections and symbols, in one table.
    let mut names = vec![0];
    let mut name = |text: &str| {
        let at = names.len() as u32;
        names.extend_from_slice(text.as_bytes());
        names.push(0);
        at
    };
    let (code_name, licence_name) = (name(SECTION), name("license"));
    let (symbols_name, names_name, symbol_name) = (name(".symtab"), name(".strtab"), name("pass"));

    // Symbol 0 is empty. Then: name, STB_GLOBAL and STT_FUNC, visibility, section 1, value, size.
    let mut symbols = vec![0; 24];
    symbols.extend(symbol_name.to_le_bytes());
    symbols.extend([0x12, 0, 1, 0]);
    symbols.extend([0, CODE.len() as u64].map(u64::to_le_bytes).concat());

    let mut body = Vec::new();
    // Section 0 is empty.
    let mut table = vec![0; 64];
    let mut section =
        |[name, kind]: [u32; 2], flags: u64, bytes: &[u8], [link, info]: [u32; 2], entry: u64| {
            body.resize(body.len().next_multiple_of(8), 0);
            let offset = HEADER + body.len() as u64;
            body.extend_from_slice(bytes);
            table.extend([name, kind].map(u32::to_le_bytes).concat());
            table.extend([flags, 0, offset, bytes.len() as u64].map(u64::to_le_bytes).concat());
            table.extend([link, info].map(u32::to_le_bytes).concat());
            table.extend([8, entry].map(u64::to_le_bytes).concat());
        };
    section([code_name, PROGBITS], ALLOC | EXECINSTR, &CODE, [0, 0], 0);
    section([licence_name, PROGBITS], ALLOC, b"Dual MIT/GPL\0", [0, 0], 0);
    // Names are in section 4; the first global symbol is number 1; an entry has 24 bytes.
    section([symbols_name, SYMTAB], 0, &symbols, [4, 1], 24);
    section([names_name, STRTAB], 0, &names, [0, 0], 0);
    body.resize(body.len().next_multiple_of(8), 0);

    // 64 bits, little endian; ET_REL, EM_BPF; no entry, no segments.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([1, 247].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    file.extend([0, 0, HEADER + body.len() as u64].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([HEADER as u16, 0, 0, 64, 5, 4].map(u16::to_le_bytes).concat());
    file.extend(body);
    file.extend(table);
    file
}
