//! Reading by headers from a peer that does what it likes.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};

use socket2::SockRef;

use super::super::Options;
use super::*;
use crate::proto::Node;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 31, 90, 2));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 31, 90, 1));

/// Both ends of a connection, and a mapper for the second.
fn pair() -> (Mapper, TcpStream, TcpStream) {
    let options = Options::new(ADDRESS);
    let mut node = Node::new(options.config).unwrap();
    let id = node.accept(Time::ZERO, PEER, 1).unwrap();
    let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    let stream = listener.accept().unwrap().0;
    stream.set_nonblocking(true).unwrap();
    (Mapper::new(&Maps::new(options.zero_copy), id, ADDRESS, Mode::On), peer, stream)
}

#[test]
fn an_urgent_byte_before_a_payload_that_is_mapped_does_not_stop_it() {
    let (mut mapper, mut peer, stream) = pair();
    let payload: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8).collect();
    let mut target = Some(Filling::new(payload.len()));
    mapper.begin(Time::ZERO, target.as_ref().unwrap(), true, Some(Mode::On));
    if mapper.run.is_none() {
        println!("skipped: this kernel does not map TCP sockets");
        return;
    }
    // The kernel maps nothing up to it, and says that there is something all the same. It is no part of the stream.
    SockRef::from(&peer).send_out_of_band(b"!").unwrap();
    peer.write_all(&payload).unwrap();
    let (pool, mut buffer, mut turns) = (Pool::new(), vec![0; 4096], 0);
    loop {
        match mapper.read(Time::ZERO, &stream, false, &mut target, &pool, &mut buffer) {
            Ok(read) if read.feed => break,
            Ok(_) => turns += 1,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        assert!(turns < 1000, "no read brings anything, and none says that nothing is there");
    }
    assert!(target.unwrap().as_slice() == Some(&payload[..]));
}
