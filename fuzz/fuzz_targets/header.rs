//! Any 48 bytes are a header; it and what is in it come back as they were encoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rds_core::wire::{HEADER_LEN, HandshakeExtensions, Header, Identity, checksum};

fuzz_target!(|bytes: &[u8]| {
    let Some(bytes) = bytes.first_chunk::<HEADER_LEN>() else { return };
    let header = Header::decode(bytes);
    assert_eq!(header.encode(), *bytes);

    let filled = header.encode_with_checksum();
    assert!(checksum::verify(&filled));
    assert_eq!(Header { csum: header.csum, ..Header::decode(&filled) }, header);
    if header.csum != 0 && checksum::verify(bytes) {
        // Right sums differ only between the two zeros of ones' complement.
        let csum = Header::decode(&filled).csum;
        assert!(csum == header.csum || (csum == 0 && header.csum == 0xffff));
    }

    let extensions = HandshakeExtensions::decode(&header.extensions);
    assert_eq!(HandshakeExtensions::decode(&extensions.encode()), extensions);
    let identity = header.identity();
    assert!(identity == Identity::Kernel || identity.encode() == header.padding);

    let kinds = [
        header.is_congestion_map(),
        header.is_handshake_ping(),
        header.is_handshake_pong(),
        header.is_ack_only(),
    ];
    assert!(kinds.into_iter().filter(|k| *k).count() <= 1);
});
