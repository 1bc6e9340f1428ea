//! The control protocol and the messages, byte for byte as the reference has them (rds-tools, sections 2 and 3).

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::{Program, SHORT, addresses, passive};
use rds_client::{Node, Received};
use rds_stress::block::{Block, Form, V1_LEN, V2_LEN, V3_LEN};
use rds_stress::message::{Header, Op};
use rds_stress::pattern::pattern;
use socket2::{Domain, Socket, Type};

const FROM: [u8; 4] = [10, 0, 0, 1];
const TO: [u8; 4] = [10, 0, 0, 2];

fn v4() -> Block {
    Block::new(TO.into(), FROM.into())
}

fn v6() -> Block {
    let address = |last: u16| IpAddr::from([0xfd00, 1, 2, 3, 4, 5, 6, last]);
    Block::new(address(2), address(1))
}

#[test]
fn the_defaults_are_those_of_the_reference() {
    #[rustfmt::skip]
    let expected = [
        0, 0, 0, 1,   0, 0, 4, 0,   0, 0, 0, 63,   0, 0, 0, 0, // depth, request, ack, RDMA
        10, 0, 0, 2,   10, 0, 0, 1, // the passive side, the active side
        0x0f, 0xa0,   0, 1,   0, 0, 0, 0, // port 4000, one task, for ever
        0, 0, 0, 0, 0, 0, // summary only, rtprio, tracing, verify, params, perfdata
        1, // congestion monitor
        0, 0, 1, 0, 0, // RDMA: use once, get mr, fence, cache, key-o-meter
        0xff, // suppress warnings: left as the block was filled
        0,   0, // simplex, RDMA mode
        0, 0, 0, 1,   0, 0, 0, 0,   0, 0, 0, 0, // RDMA vector, alignment, connect retries
    ];
    assert_eq!(v4().encode("2.0.7"), expected);
}

/// What makes a field other than it is in a block of defaults, its offset, and its bytes then.
type Case = (fn(&mut Block), usize, &'static [u8]);

#[rustfmt::skip]
const FIELDS: [Case; 28] = [
    (|b| b.depth = 0x0102_0304, 0, &[1, 2, 3, 4]),
    (|b| b.req_size = 0x0506_0708, 4, &[5, 6, 7, 8]),
    (|b| b.ack_size = 0x090a_0b0c, 8, &[9, 10, 11, 12]),
    (|b| b.rdma_size = 0x0d0e_0f10, 12, &[13, 14, 15, 16]),
    (|b| b.send_addr = [192, 168, 255, 7].into(), 16, &[192, 168, 255, 7]),
    (|b| b.receive_addr = [172, 16, 254, 9].into(), 20, &[172, 16, 254, 9]),
    (|b| b.starting_port = 0x1112, 24, &[0x11, 0x12]),
    (|b| b.tasks = 0x1314, 26, &[0x13, 0x14]),
    (|b| b.run_time = 0x1516_1718, 28, &[0x15, 0x16, 0x17, 0x18]),
    (|b| b.summary_only = true, 32, &[1]),
    (|b| b.rtprio = true, 33, &[1]),
    (|b| b.tracing = true, 34, &[1]),
    (|b| b.verify = true, 35, &[1]),
    (|b| b.show_params = true, 36, &[1]),
    (|b| b.show_perfdata = true, 37, &[1]),
    (|b| b.use_cong_monitor = false, 38, &[0]),
    (|b| b.rdma_use_once = true, 39, &[1]),
    (|b| b.rdma_use_get_mr = true, 40, &[1]),
    (|b| b.rdma_use_fence = false, 41, &[0]),
    (|b| b.rdma_cache_mrs = true, 42, &[1]),
    (|b| b.rdma_key_o_meter = true, 43, &[1]),
    (|b| b.simplex = true, 45, &[1]),
    (|b| b.rw_mode = 2, 46, &[2]),
    (|b| b.rdma_vector = 0x191a_1b1c, 47, &[0x19, 0x1a, 0x1b, 0x1c]),
    (|b| b.rdma_alignment = 0x1d1e_1f20, 51, &[0x1d, 0x1e, 0x1f, 0x20]),
    (|b| b.connect_retries = 0x2122_2324, 55, &[0x21, 0x22, 0x23, 0x24]),
    (|b| b.tos = 9, 75, &[9]),
    (|b| b.async_sends = true, 76, &[1]),
];

/// The offsets of V1 behind a version field.
fn at(form: Form, offset: usize) -> usize {
    if form == Form::V1 || offset >= V1_LEN { offset } else { 16 + offset }
}

#[test]
fn each_field_has_its_place_in_every_form_and_moves_no_other() {
    for (change, offset, bytes) in FIELDS {
        for (form, default) in
            [(Form::V1, v4()), (Form::V2, Block { tos: 1, ..v4() }), (Form::V3, Block { tos: 1, ..v6() })]
        {
            let own_form = offset < V1_LEN || form != Form::V1;
            let v6_address = form == Form::V3 && matches!(offset, 16 | 20);
            if !own_form || v6_address {
                continue;
            }
            let mut block = default.clone();
            change(&mut block);
            let mut expected = default.encode("2.3.0");
            expected[at(form, offset)..][..bytes.len()].copy_from_slice(bytes);
            let encoded = block.encode("2.3.0");
            assert_eq!(encoded, expected, "{form:?}, offset {offset}");
            assert_eq!(Block::decode(form, &encoded), block, "{form:?}, offset {offset}");
        }
    }
}

#[test]
fn a_versioned_block_begins_with_its_version_and_ends_with_what_is_new_in_it() {
    let v2 = Block { tos: 0x55, async_sends: true, ..v4() }.encode("2.3.0");
    assert_eq!(v2.len(), V2_LEN);
    assert_eq!(v2[..16], *b"2.3.0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(v2[16..75], v4().encode(""), "V1");
    assert_eq!(v2[75..], [0x55, 1]);

    let v3 = v6().encode("2.0.7");
    assert_eq!(v3.len(), V3_LEN);
    assert_eq!(v3[..16], *b"2.0.7\0\0\0\0\0\0\0\0\0\0\0");
    let v1 = Block { ack_size: 96, send_addr: [255; 4].into(), receive_addr: [0; 4].into(), ..v4() };
    assert_eq!(v3[16..75], v1.encode(""), "IPv4 addresses are filler");
    assert_eq!(v3[75..77], [0, 0]);
    let address = |last| [0xfd, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, last];
    assert_eq!(v3[77..93], address(2), "the passive side");
    assert_eq!(v3[93..109], address(1), "the active side");
    assert_eq!(v3[109..], [0; 4], "scope");
}

/// A passive side that notes what it is told, answers, and gets messages for task 0.
fn told(options: &str, control_bytes: usize) -> (Vec<u8>, Vec<u8>, SocketAddr, SocketAddr) {
    let (at, from) = addresses();
    let node = Node::open(at).unwrap();
    let socket = node.bind(4001).unwrap();
    let listener = TcpListener::bind((at, 4000)).unwrap();
    let active = Program::start(&format!("-r {from} -s {at} {SHORT} -T 1 {options}"));
    let (mut control, _) = listener.accept().unwrap();
    // In one write: the reference reads the beginning with one read.
    let mut block = vec![0; 200];
    let n = control.read(&mut block).unwrap();
    assert!(n >= control_bytes, "{n} bytes of {control_bytes}");
    block.truncate(n);
    if n == control_bytes {
        let mut go = [1];
        control.read_exact(&mut go).unwrap();
        block.push(go[0]);
    }
    control.write_all(&[0]).unwrap();
    let mut message = vec![0; 1 << 20];
    socket.set_recv_timeout(Some(Duration::from_secs(60)));
    let Ok(Received::Message { full_len, from: sender, .. }) = socket.recv_from(&mut message) else {
        panic!("a request had to come")
    };
    message.truncate(full_len);
    drop(active);
    (block, message, sender, socket.local_addr())
}

fn octets(address: SocketAddr) -> [u8; 4] {
    match address.ip() {
        IpAddr::V4(a) => a.octets(),
        IpAddr::V6(a) => panic!("{a}"),
    }
}

#[test]
fn a_running_program_says_the_block_and_go_and_sends_the_headers_of_the_reference() {
    for (options, ack, header, v2) in [
        ("-v -q 200", 63, 63, false),
        ("-v -q 200 -a 60", 60, 60, false),
        ("-q 200 -a 100", 100, 63, false),
        ("-v -q 200 -Q 3", 63, 63, true),
    ] {
        let len = if v2 { V2_LEN } else { V1_LEN };
        let (said, message, from, to) = told(options, len);
        let verify = options.contains("-v");
        let block = Block {
            req_size: 200,
            ack_size: ack,
            run_time: 1,
            verify,
            tos: if v2 { 3 } else { 0 },
            ..Block::new(to.ip(), from.ip())
        };
        assert_eq!(said[..len], block.encode("2.0.7"), "{options}");
        assert_eq!(said[len..], [0], "GO: {options}");

        // seq 0, from, to, ports, slot 0, request; no RDMA, and what else the header has is 0.
        let mut expected =
            [&[0; 4][..], &octets(from), &octets(to), &[0x0f, 0xa1, 0x0f, 0xa1, 0, 0, 1]].concat();
        expected.resize(header, 0);
        let payload = 200 - header;
        expected.extend(if verify { pattern(payload) } else { vec![0; payload] });
        assert_eq!(message, expected, "{options}");
    }
}

#[test]
fn headers_of_every_length_are_those_of_the_reference() {
    let header = Header {
        seq: 0xa1b2_c3d4,
        from: "10.1.2.3:4001".parse().unwrap(),
        to: "10.4.5.6:4258".parse().unwrap(),
        index: 0xfffe,
        op: Op::Request.code(),
        retry: false,
    };
    #[rustfmt::skip]
    let beginning = [
        0xa1, 0xb2, 0xc3, 0xd4,   10, 1, 2, 3,   10, 4, 5, 6,   0x0f, 0xa1,   0x10, 0xa2,   0xff, 0xfe,   1,
    ];
    for len in [60, 63] {
        let mut bytes = vec![0xee; len];
        header.write(&mut bytes);
        let mut expected = beginning.to_vec();
        expected.resize(len, 0);
        assert_eq!(bytes, expected);
    }
    let v6 = Header {
        from: "[fd00::1:2]:4001".parse().unwrap(),
        to: "[fd00::3:4]:4258".parse().unwrap(),
        op: Op::Ack.code(),
        ..header
    };
    let mut bytes = [0xee; 96];
    v6.write(&mut bytes);
    assert_eq!(bytes[..4], beginning[..4]);
    assert_eq!(bytes[4..12], [0; 8], "no IPv4 addresses");
    assert_eq!(bytes[12..18], beginning[12..18]);
    assert_eq!(bytes[18], 2);
    assert_eq!(bytes[19..64], [0; 45], "RDMA, retry, filler");
    assert_eq!(bytes[64..80], [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
    assert_eq!(bytes[80..], [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 4]);
}

/// Copies all that `from` says to `to`, to its end, and returns it.
fn relay(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut said, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                said.extend_from_slice(&bytes[..n]);
                to.write_all(&bytes[..n]).unwrap();
            }
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
    said
}

#[test]
fn the_control_connection_is_silent_from_the_agreement_to_its_end() {
    let (at, from) = addresses();
    // The passive side's own control port is another one: what is between notes all that is said.
    let mut passive = passive(at, "-p 5000");
    let listener = TcpListener::bind((at, 4000)).unwrap();
    let mut active = Program::start(&format!("-r {from} -s {at} {SHORT} -T 2 -t 2 -d 4"));
    let (of_active, _) = listener.accept().unwrap();
    let to_passive = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // A passive side looks at who connects.
    to_passive.bind(&SocketAddr::new(from, 0).into()).unwrap();
    to_passive.connect(&SocketAddr::new(at, 5000).into()).unwrap();
    let of_passive = TcpStream::from(to_passive);
    let (sink, said) = channel();
    for (who, from, to) in [
        ("active", of_active.try_clone().unwrap(), of_passive.try_clone().unwrap()),
        ("passive", of_passive, of_active),
    ] {
        let sink = sink.clone();
        thread::spawn(move || sink.send((who, relay(from, to))));
    }
    drop(sink);
    active.wait_line(common::is_row);
    passive.wait_line(common::is_row);
    for side in [active, passive] {
        let ended = side.end();
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("(average)"), "{ended:?}");
    }
    let mut said: Vec<_> = said.iter().collect();
    said.sort_unstable();
    let block = Block { run_time: 2, tasks: 2, depth: 4, ..Block::new(at, from) }.encode("2.0.7");
    assert_eq!(said, [("active", [&block[..], &[0]].concat()), ("passive", vec![0])]);
}
