//! Records: what is written is what is read, and no bytes at all are too much for the reader.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use proptest::prelude::*;

use super::super::record::{Encode, FULL, HEADER, Raw};
use super::super::*;
use crate::proto::{Guarantee, Outcome};
use crate::zerocopy::Mode;

fn ip() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>()
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (ip(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| match ip {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

fn payload() -> impl Strategy<Value = Where> {
    prop_oneof![
        (0..u32::MAX - 64).prop_map(Where::Inline),
        any::<(u64, u32)>().prop_map(|(offset, len)| Where::Arena { offset, len })
    ]
}

fn mode() -> impl Strategy<Value = Option<Mode>> {
    prop_oneof![Just(None), Just(Some(Mode::Off)), Just(Some(Mode::On)), Just(Some(Mode::Auto))]
}

fn submission() -> impl Strategy<Value = Submission> {
    let sharing = prop_oneof![Just(Sharing::Exclusive), Just(Sharing::Balance), Just(Sharing::FanOut)];
    prop_oneof![
        (any::<(u32, u32, bool)>(), address(), mode(), payload()).prop_map(
            |((socket, id, wants_end), to, mode, payload)| Submission::Send {
                socket,
                id,
                to,
                wants_end,
                mode,
                payload
            }
        ),
        (any::<(u32, u32, u16, u64, u64)>(), sharing).prop_map(
            |((request, socket, port, send_buffer, receive_buffer), sharing)| Submission::Bind {
                request,
                socket,
                port,
                sharing,
                send_buffer,
                receive_buffer
            }
        ),
        any::<(u32, u32, bool)>().prop_map(|(request, socket, drain)| Submission::Close {
            request,
            socket,
            drain
        }),
        (any::<(u32, u32, u64)>(), any::<bool>()).prop_map(|((request, socket, value), of)| {
            let what = if of { Setting::SendBuffer } else { Setting::ReceiveBuffer };
            Submission::Set { request, socket, what, value }
        }),
        (any::<(u32, u32, bool)>(), 0..4_u64).prop_map(|((request, socket, of), value)| {
            let what = if of { Setting::ZeroCopySend } else { Setting::ZeroCopyReceive };
            Submission::Set { request, socket, what, value }
        }),
        (any::<(u32, u32)>(), prop::option::of(address()))
            .prop_map(|((request, socket), to)| { Submission::Cancel { request, socket, to } }),
        (any::<(u32, u32)>(), address()).prop_map(|((request, socket), to)| Submission::Watch {
            request,
            socket,
            to
        }),
        any::<(u32, u64, u64)>().prop_map(|(socket, bytes, messages)| Submission::Consumed {
            socket,
            bytes,
            messages
        }),
        any::<u64>().prop_map(|offset| Submission::Free { offset }),
        any::<(u32, bool)>().prop_map(|(request, queues)| Submission::Snapshot { request, queues }),
        (any::<u32>(), ip(), mode(), mode()).prop_map(|(request, peer, send, receive)| {
            Submission::SetPeerModes { request, peer, send, receive }
        }),
    ]
}

fn completion() -> impl Strategy<Value = Completion> {
    let outcome = prop_oneof![
        Just(Outcome::Delivered(Guarantee::Application)),
        Just(Outcome::Delivered(Guarantee::Transport)),
        Just(Outcome::Unknown),
        Just(Outcome::Cancelled)
    ];
    let status = prop_oneof![
        Just(Status::Ok),
        Just(Status::Reserved),
        Just(Status::InUse),
        Just(Status::Exhausted),
        Just(Status::ShuttingDown),
        Just(Status::Quota),
        Just(Status::NotAllowed),
        Just(Status::NoSuchSocket),
        Just(Status::Unsupported),
        (9..u32::MAX).prop_map(Status::Other)
    ];
    prop_oneof![
        (any::<u32>(), address(), payload()).prop_map(|(socket, from, payload)| Completion::Message {
            socket,
            from,
            payload
        }),
        (any::<(u32, u32)>(), outcome).prop_map(|((socket, id), outcome)| Completion::Done {
            socket,
            id,
            outcome
        }),
        any::<(u32, u32, bool)>().prop_map(|(socket, id, copied)| Completion::Released {
            socket,
            id,
            copied
        }),
        any::<(u32, u64, u64)>().prop_map(|(socket, bytes, messages)| Completion::Credit {
            socket,
            bytes,
            messages
        }),
        (any::<u32>(), address()).prop_map(|(socket, to)| Completion::Congested { socket, to }),
        (any::<u32>(), address()).prop_map(|(socket, to)| Completion::Uncongested { socket, to }),
        (any::<(u32, u64)>(), status, 0..u32::MAX - 64).prop_map(|((request, value), status, body_len)| {
            Completion::Reply { request, status, value, body_len }
        }),
        (any::<u16>(), 0..u32::MAX - 64).prop_map(|(code, body_len)| Completion::Goodbye { code, body_len }),
    ]
}

/// As a reader copies it out, with `after` where the record has ended.
fn copied_out(record: &impl Encode, after: [u8; FULL]) -> Raw {
    let encoded = record.encode();
    let mut bytes = after;
    let (head, len) = encoded.bytes();
    bytes[..len].copy_from_slice(&head[..len]);
    let raw = Raw::of_bytes(&bytes);
    assert_eq!((raw.len(), raw.head_len() as usize, raw.bytes()), (encoded.len(), len, bytes));
    assert_eq!(raw.body_len(), encoded.body_len());
    raw
}

proptest! {
    #[test]
    fn every_submission_comes_back_as_it_was_written(said in submission(), after: [u8; FULL]) {
        let raw = copied_out(&said, after);
        prop_assert_eq!(Submission::decode(&raw), Ok(said));
        prop_assert_eq!(Completion::decode(&raw), Err(Violation::Kind(raw.kind())));
    }

    #[test]
    fn every_completion_comes_back_as_it_was_written(said in completion(), after: [u8; FULL]) {
        let raw = copied_out(&said, after);
        prop_assert_eq!(Completion::decode(&raw), Ok(said));
        prop_assert_eq!(Submission::decode(&raw), Err(Violation::Kind(raw.kind())));
    }

    #[test]
    fn any_bytes_are_a_value_that_encodes_to_itself_or_an_error(
        mut bytes: [u8; FULL], kind in 0..80_u8, len in 0..80_u32, plain: bool,
    ) {
        // Mostly near what is right, so that all checks are reached.
        if plain {
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes[4] = kind;
            bytes[5] &= 7;
        }
        let raw = Raw::of_bytes(&bytes);
        if let Ok(said) = Submission::decode(&raw) {
            prop_assert_eq!(Submission::decode(&copied_out(&said, bytes)), Ok(said));
            prop_assert_eq!(said.encode().len(), raw.len());
        }
        if let Ok(said) = Completion::decode(&raw) {
            prop_assert_eq!(Completion::decode(&copied_out(&said, bytes)), Ok(said));
            prop_assert_eq!(said.encode().len(), raw.len());
        }
    }
}

#[test]
fn each_kind_refuses_flags_lengths_and_values_that_it_does_not_have() {
    let to: SocketAddr = "127.42.0.2:7".parse().unwrap();
    let all: [(Raw, u8); 6] = [
        (copied_out(&Submission::Close { request: 1, socket: 2, drain: true }, [0; FULL]), 2),
        (copied_out(&Submission::Free { offset: 1 }, [0; FULL]), 0),
        (copied_out(&Submission::Watch { request: 1, socket: 1, to }, [0; FULL]), 1),
        (copied_out(&Submission::Snapshot { request: 1, queues: false }, [0; FULL]), 2),
        (copied_out(&Submission::Consumed { socket: 1, bytes: 1, messages: 1 }, [0; FULL]), 0),
        (
            copied_out(
                &Submission::Send {
                    socket: 1,
                    id: 1,
                    to,
                    wants_end: true,
                    mode: None,
                    payload: Where::Arena { offset: 0, len: 1 },
                },
                [0; FULL],
            ),
            0x1f,
        ),
    ];
    for (raw, allowed) in all {
        Submission::decode(&raw).unwrap();
        for flag in (0..8).map(|n| 1 << n) {
            let mut bytes = raw.bytes();
            bytes[5] |= flag;
            let refused = Submission::decode(&Raw::of_bytes(&bytes)).is_err();
            assert_eq!(refused, allowed & flag == 0, "kind {} with flag {flag}", raw.kind());
        }
        for len in [0, HEADER as u32 - 1, raw.len() + 1, u32::MAX] {
            let mut bytes = raw.bytes();
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            let said = Submission::decode(&Raw::of_bytes(&bytes));
            assert!(matches!(said, Err(Violation::Size { .. })), "kind {}: {said:?}", raw.kind());
        }
    }
}
