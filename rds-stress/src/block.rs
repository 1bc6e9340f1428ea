//! The options block: what the active side tells the passive one, bit for bit (rds-tools, section 2.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a V1 block.
pub const V1_LEN: usize = 59;
/// Bytes of a V2 block: version, V1, tos, async.
pub const V2_LEN: usize = VERSION_LEN + V1_LEN + 2;
/// Bytes of a V3 block: V2, two IPv6 addresses, a scope.
pub const V3_LEN: usize = V2_LEN + 36;
/// Bytes of the block of version 1.4, which is recognised only to be refused by name.
pub const V1_4_LEN: usize = 53;
/// Bytes of the version field. A receiver decides by these what follows.
pub const VERSION_LEN: usize = 16;

/// The options that travel. Addresses are those of the sender: `send_addr` is the passive side's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Block {
    /// `-d`: requests outstanding for each pair of tasks.
    pub depth: u32,
    /// `-q`: bytes of a request, header included.
    pub req_size: u32,
    /// `-a`: bytes of an ack, header included.
    pub ack_size: u32,
    /// `-D`: bytes of an RDMA operation; 0 for none.
    pub rdma_size: u32,
    /// The passive side.
    pub send_addr: IpAddr,
    /// The active side.
    pub receive_addr: IpAddr,
    /// `-p`: task `i` binds RDS port `starting_port + 1 + i`.
    pub starting_port: u16,
    /// `-t`.
    pub tasks: u16,
    /// `-T`, in seconds; 0 for ever. Only the active side obeys it.
    pub run_time: u32,
    /// `-z`.
    pub summary_only: bool,
    /// `-R`.
    pub rtprio: bool,
    /// `-V`.
    pub tracing: bool,
    /// `-v`.
    pub verify: bool,
    /// `--show-params`.
    pub show_params: bool,
    /// `--show-perfdata`.
    pub show_perfdata: bool,
    /// `--use-cong-monitor`.
    pub use_cong_monitor: bool,
    /// `--rdma-use-once`.
    pub rdma_use_once: bool,
    /// `--rdma-use-get-mr`.
    pub rdma_use_get_mr: bool,
    /// `--rdma-use-fence`.
    pub rdma_use_fence: bool,
    /// `--rdma-cache-mrs`.
    pub rdma_cache_mrs: bool,
    /// `--rdma-key-o-meter`.
    pub rdma_key_o_meter: bool,
    /// `-o`.
    pub simplex: bool,
    /// `-M`.
    pub rw_mode: u8,
    /// `-I`.
    pub rdma_vector: u32,
    /// `--rdma-alignment`.
    pub rdma_alignment: u32,
    /// `--connect-retries`.
    pub connect_retries: u32,
    /// `-Q`; V2 and V3 only.
    pub tos: u8,
    /// `--async`; V2 and V3 only.
    pub async_sends: bool,
}

impl Block {
    /// The reference's defaults between two addresses.
    #[must_use]
    pub fn new(send_addr: IpAddr, receive_addr: IpAddr) -> Self {
        Self {
            depth: 1,
            req_size: 1024,
            ack_size: if send_addr.is_ipv4() { 63 } else { 96 },
            rdma_size: 0,
            send_addr,
            receive_addr,
            starting_port: 4000,
            tasks: 1,
            run_time: 0,
            summary_only: false,
            rtprio: false,
            tracing: false,
            verify: false,
            show_params: false,
            show_perfdata: false,
            use_cong_monitor: true,
            rdma_use_once: false,
            rdma_use_get_mr: false,
            rdma_use_fence: true,
            rdma_cache_mrs: false,
            rdma_key_o_meter: false,
            simplex: false,
            rw_mode: 0,
            rdma_vector: 1,
            rdma_alignment: 0,
            connect_retries: 0,
            tos: 0,
            async_sends: false,
        }
    }

    /// The block as it travels: V1 where that can say everything, for every release from 1.5 on understands it; else V2
    /// or, for IPv6, V3, with `peer_version`, which the reference compares with its own.
    #[must_use]
    pub fn encode(&self, peer_version: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(V3_LEN);
        let extended = self.send_addr.is_ipv6() || self.tos != 0 || self.async_sends;
        if extended {
            let version = peer_version.as_bytes();
            let len = version.len().min(VERSION_LEN - 1);
            out.extend_from_slice(&version[..len]);
            out.resize(VERSION_LEN, 0);
        }
        self.encode_v1(&mut out);
        if extended {
            out.push(self.tos);
            out.push(u8::from(self.async_sends));
        }
        if let (IpAddr::V6(send), IpAddr::V6(receive)) = (self.send_addr, self.receive_addr) {
            out.extend_from_slice(&send.octets());
            out.extend_from_slice(&receive.octets());
            out.extend_from_slice(&[0; 4]);
        }
        out
    }

    fn encode_v1(&self, out: &mut Vec<u8>) {
        let v4 = |addr, other: u32| match addr {
            IpAddr::V4(a) => u32::from(a),
            IpAddr::V6(_) => other,
        };
        for number in [
            self.depth,
            self.req_size,
            self.ack_size,
            self.rdma_size,
            v4(self.send_addr, u32::MAX),
            v4(self.receive_addr, 0),
        ] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.starting_port.to_be_bytes());
        out.extend_from_slice(&self.tasks.to_be_bytes());
        out.extend_from_slice(&self.run_time.to_be_bytes());
        out.extend(
            [
                self.summary_only,
                self.rtprio,
                self.tracing,
                self.verify,
                self.show_params,
                self.show_perfdata,
                self.use_cong_monitor,
                self.rdma_use_once,
                self.rdma_use_get_mr,
                self.rdma_use_fence,
                self.rdma_cache_mrs,
                self.rdma_key_o_meter,
            ]
            .map(u8::from),
        );
        // suppress_warnings: the reference's block starts as all ones, and nobody reads this one.
        out.push(0xff);
        out.push(u8::from(self.simplex));
        out.push(self.rw_mode);
        for number in [self.rdma_vector, self.rdma_alignment, self.connect_retries] {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }

    /// Reads a block whose form [`Form::detect`] has told; `bytes` has exactly [`Form::len`] bytes. Values are as sent:
    /// [`Session::new`](crate::session::Session::new) judges them.
    #[must_use]
    pub fn decode(form: Form, bytes: &[u8]) -> Self {
        let mut from = Reader(bytes);
        if form != Form::V1 {
            let _version: [u8; VERSION_LEN] = from.array();
        }
        let depth = from.u32();
        let req_size = from.u32();
        let ack_size = from.u32();
        let rdma_size = from.u32();
        let send_addr = IpAddr::V4(Ipv4Addr::from(from.u32()));
        let receive_addr = IpAddr::V4(Ipv4Addr::from(from.u32()));
        let starting_port = from.u16();
        let tasks = from.u16();
        let run_time = from.u32();
        let flags: [u8; 14] = from.array();
        let rw_mode = from.u8();
        let mut block = Self {
            depth,
            req_size,
            ack_size,
            rdma_size,
            starting_port,
            tasks,
            run_time,
            summary_only: flags[0] != 0,
            rtprio: flags[1] != 0,
            tracing: flags[2] != 0,
            verify: flags[3] != 0,
            show_params: flags[4] != 0,
            show_perfdata: flags[5] != 0,
            use_cong_monitor: flags[6] != 0,
            rdma_use_once: flags[7] != 0,
            rdma_use_get_mr: flags[8] != 0,
            rdma_use_fence: flags[9] != 0,
            rdma_cache_mrs: flags[10] != 0,
            rdma_key_o_meter: flags[11] != 0,
            simplex: flags[13] != 0,
            rw_mode,
            rdma_vector: from.u32(),
            rdma_alignment: from.u32(),
            connect_retries: from.u32(),
            ..Self::new(send_addr, receive_addr)
        };
        if form != Form::V1 {
            block.tos = from.u8();
            block.async_sends = from.u8() != 0;
        }
        if form == Form::V3 {
            block.send_addr = IpAddr::V6(Ipv6Addr::from(from.array::<16>()));
            block.receive_addr = IpAddr::V6(Ipv6Addr::from(from.array::<16>()));
        }
        block
    }
}

/// Which of the forms a block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// No version, IPv4.
    V1,
    /// Version, IPv4, tos and async.
    V2,
    /// As V2, with IPv6 addresses.
    V3,
}

impl Form {
    /// Tells the form from the first 16 bytes and whether the control connection is IPv6. The reference compares them with
    /// its own version and takes any other for V1; a digit and a dot, which a V1 block could only begin with at a depth
    /// above 800 million, say the same for every version.
    #[must_use]
    pub fn detect(first: &[u8; VERSION_LEN], ipv6: bool) -> Self {
        match (first[0].is_ascii_digit() && first[1] == b'.', ipv6) {
            (false, _) => Self::V1,
            (true, false) => Self::V2,
            (true, true) => Self::V3,
        }
    }

    /// Bytes of a block of this form.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> usize {
        match self {
            Self::V1 => V1_LEN,
            Self::V2 => V2_LEN,
            Self::V3 => V3_LEN,
        }
    }
}

/// The version in a V2 or V3 block, with what is not printable replaced, and whether the sender asks to exchange options
/// as JSON (2.3.9 and later): `json` and a NUL lie 3 bytes behind the version's end.
#[must_use]
pub fn version(field: &[u8; VERSION_LEN]) -> (String, bool) {
    let len = field.iter().position(|b| *b == 0).unwrap_or(VERSION_LEN);
    let text = field[..len].iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { '?' }).collect();
    (text, field.get(len + 3..len + 8) == Some(b"json\0"))
}

/// Takes fields off the front. All lengths are constants of the forms above.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().expect("the block has the length of its form");
        self.0 = rest;
        *head
    }
    fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn block() -> Block {
        Block {
            depth: 8,
            req_size: 4096,
            tasks: 4,
            run_time: 10,
            verify: true,
            connect_retries: 3,
            ..Block::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into())
        }
    }

    const V1: &str = concat!(
        "00000008", "00001000", "0000003f", "00000000", "0a000002", "0a000001", "0fa0", "0004", "0000000a",
        "00", "00", "00", "01", "00", "00", "01", "00", "00", "01", "00", "00", "ff", "00", "00", "00000001",
        "00000000", "00000003"
    );

    #[test]
    fn a_v1_block_is_59_bytes_as_the_reference_sends_it() {
        let bytes = block().encode("2.0.7");
        assert_eq!(bytes.len(), V1_LEN);
        assert_eq!(hex(&bytes), V1);
    }

    #[test]
    fn a_v2_block_is_77_bytes_as_the_reference_sends_it() {
        let bytes = Block { tos: 5, ..block() }.encode("2.0.7");
        assert_eq!(bytes.len(), V2_LEN);
        assert_eq!(hex(&bytes), format!("322e302e370000000000000000000000{V1}0500"));
    }

    #[test]
    fn a_v3_block_is_113_bytes_as_the_reference_sends_it() {
        let to = "fd00::2".parse::<IpAddr>().unwrap();
        let from = "fd00::1".parse::<IpAddr>().unwrap();
        let bytes = Block { ack_size: 96, send_addr: to, receive_addr: from, ..block() }.encode("2.3.0");
        assert_eq!(bytes.len(), V3_LEN);
        let v1 = V1
            .replace("0a000002", "ffffffff")
            .replace("0a000001", "00000000")
            .replace("0000003f", "00000060");
        let addresses = "fd000000000000000000000000000002fd000000000000000000000000000001";
        assert_eq!(hex(&bytes), format!("322e332e300000000000000000000000{v1}0000{addresses}00000000"));
    }

    #[test]
    fn every_field_is_read_back_from_every_form() {
        let v4 = Block {
            rdma_size: 7,
            starting_port: 5000,
            summary_only: true,
            rtprio: true,
            tracing: true,
            show_params: true,
            show_perfdata: true,
            use_cong_monitor: false,
            rdma_use_once: true,
            rdma_use_get_mr: true,
            rdma_use_fence: false,
            rdma_cache_mrs: true,
            rdma_key_o_meter: true,
            simplex: true,
            rw_mode: 2,
            rdma_vector: 9,
            rdma_alignment: 11,
            ..block()
        };
        let v4_tos = Block { tos: 255, async_sends: true, ..v4.clone() };
        let v6 = Block {
            send_addr: "::2".parse().unwrap(),
            receive_addr: "::3".parse().unwrap(),
            ..v4_tos.clone()
        };
        for (block, ipv6, form) in [(v4, false, Form::V1), (v4_tos, false, Form::V2), (v6, true, Form::V3)] {
            let bytes = block.encode("2.0.7");
            assert_eq!(Form::detect(bytes.first_chunk().unwrap(), ipv6), form);
            assert_eq!(form.len(), bytes.len());
            assert_eq!(Block::decode(form, &bytes), block);
        }
    }

    #[test]
    fn the_json_mark_is_found_behind_the_version() {
        let field = *b"2.0.7\0\0\0json\0\0\0\0";
        assert_eq!(version(&field), ("2.0.7".into(), true));
        assert_eq!(version(b"2.0.7\0\0\0\0\0\0\0\0\0\0\0"), ("2.0.7".into(), false));
        assert_eq!(version(b"2.3.11\0\0\0json\0\0\0"), ("2.3.11".into(), true));
        assert_eq!(version(b"2.\x1b[31m.78901234"), ("2.?[31m.78901234".into(), false));
    }

    #[test]
    fn an_overlong_version_is_cut_to_its_field() {
        let bytes = Block { tos: 1, ..block() }.encode("2.3456789012345678");
        assert_eq!(&bytes[..VERSION_LEN], b"2.3456789012345\0");
    }
}
