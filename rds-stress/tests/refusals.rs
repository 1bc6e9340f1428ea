//! What the program says, in one line, when it cannot run.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use common::{Ended, Program, addresses, free_port, run};
use rds_stress::block::Block;
use socket2::{Domain, Socket, Type};

/// Ended with 1 and one line that has all `words`.
fn refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.starts_with("rds-stress: "), "{ended:?}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word} in {ended:?}");
    }
}

/// A passive side that whoever connects to its control port will meet, and that port.
fn passive() -> (Program, u16) {
    let port = free_port();
    let mut program = Program::start(&format!("-p {port}"));
    program.wait_line(|l| l.starts_with("waiting for incoming connection"));
    (program, port)
}

/// Says `bytes` from 127.0.0.2 to a passive side; what it answers, and its end.
fn say(bytes: &[u8]) -> (Vec<u8>, Ended) {
    let (program, port) = passive();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(bytes).unwrap();
    // A reset is as good as an end: the program leaves what it does not want unread, and may be gone already.
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    (answer, program.end())
}

fn block() -> Block {
    Block::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into())
}

#[test]
fn a_stranger_at_the_control_port_ends_the_passive_side_with_one_line() {
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something long enough for a block\r\n\r\n"
            .as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
        &[0; 59],
        &[0xff; 200],
        b"2.0.7\0\0\0\0\0\0\0\0\0\0\0 and then nothing of use",
    ] {
        let (answer, ended) = say(bytes);
        assert!(answer.is_empty(), "{answer:?}");
        refused(&ended, &["127.0.0.2:"]);
    }
}

#[test]
fn options_that_would_take_too_much_memory_are_refused_before_it_is_taken() {
    for (block, word) in [
        (Block { tasks: 60000, starting_port: 100, depth: 65536, ..block() }, "MiB"),
        (Block { depth: u32::MAX, ..block() }, "depth"),
        (Block { req_size: u32::MAX, ..block() }, "a request"),
    ] {
        let (_, ended) = say(&block.encode("2.0.7"));
        refused(&ended, &[word, "127.0.0.2:"]);
    }
}

#[test]
fn options_that_point_at_somebody_else_are_refused() {
    let block = Block { receive_addr: [127, 9, 9, 9].into(), ..block() };
    let (_, ended) = say(&block.encode("2.0.7"));
    refused(&ended, &["127.9.9.9", "-r"]);
}

#[test]
fn an_active_side_that_wants_json_gets_an_answer_that_refuses_it() {
    let mut bytes = Block { tos: 1, ..block() }.encode("2.0.7");
    bytes[8..12].copy_from_slice(b"json");
    bytes.push(0);
    let (answer, ended) = say(&bytes);
    assert_eq!(answer, [0]);
    refused(&ended, &["JSON", "--disable-inq"]);
}

#[test]
fn nobody_at_the_other_side_is_said_with_what_to_do() {
    let (passive, active) = addresses();
    let ended = run(&format!("-r {active} -s {passive}"));
    refused(&ended, &["no rds-stress answers", "start 'rds-stress' there"]);
    assert_eq!(ended.stdout, format!("connecting to {passive}:4000: Connection refused\n"));
}

#[test]
fn nobody_at_the_other_side_is_tried_again_as_often_as_told() {
    let (passive, active) = addresses();
    let ended = run(&format!("-r {active} -s {passive} --connect-retries 2"));
    refused(&ended, &["no rds-stress answers"]);
    assert_eq!(ended.stdout, format!("connecting to {passive}:4000: Connection refused - retrying.\n"));
}

#[test]
fn an_address_that_is_not_local_is_named() {
    // 192.0.2.0/24 is for documentation: no host has it.
    refused(&run("-r 192.0.2.1"), &["192.0.2.1 is not an address of this host", "-r"]);
    refused(&run("-r 192.0.2.1 -s 127.0.0.1"), &["192.0.2.1 is not an address of this host", "-r"]);
}

#[test]
fn one_address_for_both_sides_is_refused() {
    refused(&run("-r 127.0.0.1 -s 127.0.0.1"), &["both sides", "-r", "--loopback"]);
}

#[test]
fn a_control_port_in_use_is_said_with_what_to_do() {
    let (passive, _) = addresses();
    let _holder = TcpListener::bind((passive, 4000)).unwrap();
    refused(&run(&format!("-r {passive}")), &["4000", "in use", "-p"]);
}

#[test]
fn an_rds_port_in_use_is_said_with_what_to_do() {
    let port = free_port();
    let _holder = TcpListener::bind(("127.0.0.1", port)).unwrap();
    refused(&run(&format!("--loopback --rds-port {port}")), &[&port.to_string(), "in use", "--rds-port"]);
}

#[test]
fn a_daemon_that_is_not_there_is_named() {
    for line in ["", "--processes"] {
        refused(&run(&format!("-r 127.0.0.1 --attach /nowhere/rds.sock {line}")), &["/nowhere/rds.sock"]);
    }
}

#[test]
fn the_word_for_tasks_is_for_the_program_itself() {
    let ended = run("task-process");
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("rds-stress itself"), "{ended:?}");
}

#[test]
fn options_that_cannot_work_are_refused_before_anything_is_said() {
    let port = free_port();
    for (line, words) in [
        ("-q 62", ["62 bytes a request", "63"]),
        ("-a 60 -q 60 --header-bytes 63", ["60 bytes a request", "63"]),
        ("-d 65537", ["depth 65537", "65536"]),
        ("-t 0", ["0 tasks", "at least 1"]),
        ("--header-bytes 61", ["61 bytes", "56, 60 and 63"]),
    ] {
        refused(&run(&format!("--loopback --rds-port {port} {line}")), &words);
    }
}
