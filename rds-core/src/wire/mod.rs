//! The wire format of RDS over TCP: pure bytes to values and back.
//!
//! Source: Linux `net/rds/rds.h`, `message.c`, `tcp_recv.c`, `cong.c`; each file names its part.
//! Nothing here allocates on the message path, blocks, or knows about connections beyond the
//! [`framing::Decoder`] of one byte stream.

pub mod checksum;
pub mod congestion;
pub mod extension;
pub mod framing;
pub mod header;
pub mod identity;

pub use congestion::CongestionMap;
pub use extension::HandshakeExtensions;
pub use framing::{Decoder, FramingError, Item};
pub use header::{Flags, HEADER_LEN, Header};
pub use identity::{Capabilities, Identity};

/// TCP port on which Linux rds_tcp listens and to which it connects (`net/rds/tcp.h`, `RDS_TCP_PORT`).
pub const RDS_TCP_PORT: u16 = 16385;
/// RDS port of the peer's engine itself; a message to it is a ping (`net/rds/recv.c`).
pub const PORT_ENGINE: u16 = 0;
/// Reserved RDS port of handshake messages (`net/rds/rds.h`, `RDS_FLAG_PROBE_PORT`).
pub const PORT_PROBE: u16 = 1;
/// Largest payload that Linux sends, in bytes (`net/rds/rds.h`, `RDS_MAX_MSG_SIZE`).
pub const MAX_MESSAGE: u32 = 1 << 20;
/// What a receiver tolerates above its largest message before it calls the framing lost, in bytes.
/// Oracle's UEK kernels send up to a page more than [`MAX_MESSAGE`].
pub const MAX_MESSAGE_SLACK: u32 = 64 << 10;
/// Most lanes (kernel: paths) between two nodes (`net/rds/rds.h`, `RDS_MPATH_WORKERS`).
pub const MAX_LANES: u8 = 8;
