//! Other settings while the daemon runs: what they change at once, and what they leave alone.

mod common;

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use common::{Daemon, LONG, attach};
use rds_client::{Completion, Node, OpenError, Received, Socket};
use rds_core::proto::{BindError, PeerFilter, PeerRules};
use rds_server::access::Attach;
use rds_server::config::{Reloader, Source};
use rds_server::life::Inherited;
use rds_server::server::Server;
use rds_server::settings::Settings;

fn patient(socket: Socket) -> Socket {
    socket.set_recv_timeout(Some(LONG));
    socket.set_send_timeout(Some(LONG));
    socket
}

#[track_caller]
fn receive(socket: &Socket) -> Vec<u8> {
    let mut buffer = [0; 64];
    match socket.recv_from(&mut buffer) {
        Ok(Received::Message { len, .. }) => buffer[..len].to_vec(),
        other => panic!("only a message can come: {other:?}"),
    }
}

/// Sends and receives one message.
#[track_caller]
fn passes(from: &Socket, to: &Socket, text: &[u8]) {
    from.send_to(text, to.local_addr()).unwrap();
    assert_eq!(receive(to), text);
}

#[test]
fn who_has_more_than_a_lowered_quota_keeps_it_and_gets_nothing_more_until_it_is_raised() {
    let mut daemon = Daemon::at(&["127.43.6.1"]);
    let node = daemon.attach();
    let (a, b) = (patient(node.bind(0).unwrap()), patient(node.bind(0).unwrap()));
    daemon.reload(|settings| settings.quotas.client.sockets = 1);
    passes(&a, &b, b"both are there");
    assert!(matches!(node.bind(0), Err(BindError::Quota)));
    drop(b);
    assert!(matches!(node.bind(0), Err(BindError::Quota)), "one is as many as may be");
    daemon.reload(|settings| settings.quotas.client.sockets = 2);
    let b = patient(node.bind(0).unwrap());
    passes(&a, &b, b"again");
    // Of programs: the first stays, another does not come in.
    daemon.reload(|settings| settings.quotas.max_clients = 1);
    assert!(matches!(Node::attach(daemon.path()), Err(OpenError::Attach { .. })));
    passes(&b, &a, b"still");
    daemon.reload(|settings| settings.quotas.max_clients = 2);
    drop(attach(&daemon.path()));
}

#[test]
fn changed_rules_concern_the_next_bind_and_the_next_program() {
    let mut daemon = Daemon::at(&["127.43.6.2"]);
    let node = daemon.attach();
    let (a, b) = (patient(node.bind(50).unwrap()), patient(node.bind(0).unwrap()));
    daemon.reload(|settings| {
        settings.rules = vec!["deny,port=50-59".parse().unwrap(), "allow".parse().unwrap()]
    });
    passes(&a, &b, b"what is bound stays");
    assert!(matches!(node.bind(51), Err(BindError::NotAllowed(51))));
    drop(node.bind(60).unwrap());
    daemon.reload(|settings| settings.rules = Vec::new());
    drop(node.bind(51).unwrap());
    // Nobody is this user, so nobody may attach.
    daemon.reload(|settings| settings.attach = Attach { uids: vec![u32::MAX - 7], gids: Vec::new() });
    assert!(Node::attach(daemon.path()).is_err());
    passes(&b, &a, b"who is attached stays");
    daemon.reload(|settings| settings.attach = Attach::default());
    drop(attach(&daemon.path()));
}

#[test]
fn what_may_be_pinned_changes_for_programs_that_are_attached() {
    let mut daemon = Daemon::with(&["127.43.6.3"], |settings| settings.pinned_per_client = Some(8 << 20));
    let node = daemon.attach();
    let limit = |node: &Node| node.status().unwrap().clients[0].pinned_limit;
    assert_eq!(limit(&node), Some(8 << 20));
    for (client, user, both) in [(4, 64, 4), (64, 2, 2), (6, 32, 6)] {
        daemon.reload(|settings| {
            (settings.pinned_per_client, settings.pinned_per_user) = (Some(client << 20), Some(user << 20));
        });
        assert_eq!(limit(&node), Some(both << 20));
    }
}

#[test]
fn peers_that_are_refused_from_now_on_are_cut_off_and_come_back_when_they_may() {
    let far = Daemon::at(&["127.43.6.5"]);
    let other = Daemon::at(&["127.43.6.6"]);
    let mut near = Daemon::at(&["127.43.6.4"]);
    let (a, b, c) = (near.attach(), far.attach(), other.attach());
    let socket = |node: &Node| patient(node.bind(5).unwrap());
    let (a_socket, b_socket, c_socket) = (socket(&a), socket(&b), socket(&c));
    passes(&a_socket, &b_socket, b"1");
    passes(&a_socket, &c_socket, b"1");
    let refuse = |net: &str| PeerRules::new(Vec::new(), vec![net.parse().unwrap()]);
    let both = || PeerFilter::new(refuse("127.43.6.5/32"), refuse("127.43.6.5/32"));
    near.reload(|settings| settings.peers = both());
    let cookie = a_socket.send_owned(vec![1; 100], b_socket.local_addr()).unwrap();
    let mut ends = Vec::new();
    while !ends.contains(&Completion::Cancelled { cookie }) {
        assert!(a_socket.wait_completions(&mut ends, Some(LONG)) > 0, "{ends:?}");
    }
    // The other way it waits at the sender, and its connection is gone.
    b_socket.send_to(b"2", a_socket.local_addr()).unwrap();
    passes(&c_socket, &a_socket, b"2");
    let resets = |node: &Node, peer: SocketAddr| {
        let peers = node.snapshot().peers;
        peers
            .iter()
            .filter(|p| p.address == peer.ip())
            .flat_map(|p| &p.connections)
            .map(|c| c.resets)
            .sum::<u64>()
    };
    assert_eq!((resets(&a, b_socket.local_addr()), resets(&a, c_socket.local_addr())), (1, 0));
    near.reload(|settings| settings.peers = PeerFilter::default());
    passes(&a_socket, &b_socket, b"3");
    assert_eq!(receive(&a_socket), b"2", "what waited comes");
}

#[test]
fn the_status_tells_where_the_configuration_is_from_and_why_it_could_not_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rds.toml");
    let write = |text: &str| {
        let socket = folder.path().join("rds.sock");
        let base = format!("access.socket = {socket:?}\nnode.address = '127.43.6.7'\nnode.listen-port = 0\n");
        std::fs::write(&file, base + text).unwrap();
    };
    write("quotas.max-clients = 5");
    let source = Source { file: Some(file.clone()), ..Source::default() };
    let loaded = source.load().unwrap();
    let server = rds_server::server::Server::start(loaded.settings.clone()).unwrap();
    let (calls, (level, levels)) = (server.calls(), std::sync::mpsc::channel());
    let set_level = move |new: &str| level.send(new.to_owned()).map_err(|e| e.to_string());
    let mut reloader = Reloader::new(source, &loaded, Box::new(set_level));
    let status = || calls.status(LONG).unwrap();
    let first = status().config;
    assert_eq!((first.file.as_deref(), first.reloads, &first.last_error), (Some(&*file), 0, &None));

    write("quotas.max-clients = 6\nquotas.max-cliens-per-uid = 1");
    let why = reloader.reload(&calls).unwrap_err();
    assert!(why.contains("rds.toml:5: unknown key 'quotas.max-cliens-per-uid': did you mean"), "{why}");
    let config = status().config;
    assert_eq!((config.reloads, config.failed_reloads, config.last_error.as_ref()), (0, 1, Some(&why)));
    assert_eq!(reloader.reload(&calls).unwrap_err(), why, "it says so each time");

    write("quotas.max-clients = 6\nnode.lanes = 4\nlog.level = 'debug'\nlife.drain = 0");
    let what = reloader.reload(&calls).unwrap();
    assert_eq!(what, "changed: quotas.max-clients, life.drain, log.level; needs a restart: node.lanes");
    assert_eq!(levels.try_iter().collect::<Vec<_>>(), ["debug"]);
    assert_eq!(calls.drain(), Duration::ZERO);
    let config = status().config;
    assert_eq!((config.reloads, config.failed_reloads, config.last_error), (1, 2, None));
    // What waits for a restart is told again, and what has changed is not.
    assert_eq!(reloader.reload(&calls).unwrap(), "nothing has changed; needs a restart: node.lanes");
    server.stop().unwrap();
    assert!(reloader.reload(&calls).is_ok(), "there is nothing to tell it");
    write("");
    assert!(reloader.reload(&calls).unwrap_err().contains("ending"));
}

#[test]
fn where_it_serves_stays_what_it_is_although_another_path_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    let passed = folder.path().join("passed.sock");
    let mut inherited = Inherited::default();
    inherited.programs = Some(UnixListener::bind(&passed).unwrap());
    let mut settings = Settings::new(vec!["127.43.6.9".parse().unwrap()]);
    settings.socket = folder.path().join("configured.sock");
    (settings.listen_port, settings.dial_port) = (common::PORT, common::PORT);
    let server = Server::start_with(settings.clone(), inherited).unwrap();
    settings.quotas.max_clients = 7;
    server.calls().reload(settings, LONG).unwrap();
    assert_eq!(server.calls().status(LONG).unwrap().socket, passed);
}
