//! A daemon and a program in two processes: all records arrive whole and in order, in both forms, while each sleeps when it has nothing to do;
//! and a program that scribbles over all it can write harms nobody.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rds_core::attach::{
    Accepted, Attached, Channel, Completion, Fault, Greeting, Hello, Record, Status, Submission, Welcome,
    Where, attach, ring_capacity,
};

/// Tells a child what it is.
const ROLE: &str = "RDS_ATTACH_TEST_ROLE";
const PATH: &str = "RDS_ATTACH_TEST_PATH";
const LONG: Duration = Duration::from_secs(60);

fn welcome(stream: bool) -> Welcome {
    Welcome {
        session: 1,
        instance: 1,
        address: std::net::IpAddr::from([127, 42, 0, 3]).into(),
        stream,
        max_message: 1 << 20,
        max_sockets: 1,
        submission_ring: ring_capacity(0, 16 << 10, 16 << 10),
        completion_ring: ring_capacity(0, 16 << 10, 16 << 10),
        send_arena: 1 << 20,
        receive_arena: 1 << 20,
        max_send_buffer: 1 << 20,
        max_receive_buffer: 1 << 20,
    }
}

/// This test again, in a process that plays `role`; and who attached.
fn with_child(test: &str, role: &str, stream: bool) -> (Accepted, Child, PathBuf) {
    let dir = std::env::temp_dir().join(format!("rds-attach-{}-{test}-{stream}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("rds.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(PATH, &path)
        .spawn()
        .unwrap();
    let mut greeting = Greeting::new(listener.accept().unwrap().0).unwrap();
    while greeting.read().unwrap().is_none() {
        wait(greeting.as_fd(), PollFlags::POLLIN);
    }
    assert_eq!(greeting.credentials().pid, child.id() as i32);
    (greeting.welcome(&welcome(stream)).unwrap(), child, dir)
}

fn ended(mut child: Child, dir: &Path) {
    assert!(child.wait().unwrap().success());
    std::fs::remove_dir_all(dir).unwrap();
}

/// What this process is to play, if it is a child.
fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PATH)?.into()))
}

fn child(path: &Path, stream: bool) -> Attached {
    let hello = Hello { stream, program: "child".into(), ..Hello::default() };
    attach(path, &hello, LONG).unwrap()
}

fn wait(fd: std::os::fd::BorrowedFd<'_>, what: PollFlags) {
    let n = poll(&mut [PollFd::new(fd, what)], PollTimeout::from(60_000_u16)).unwrap();
    assert!(n > 0, "nobody woke us");
}

/// Sleeps until there may be something to be read, or to be written.
fn sleep(channel: &mut Channel, is_daemon: bool) {
    let mut what = PollFlags::POLLIN;
    if channel.producer.has_pending() {
        what |= PollFlags::POLLOUT;
    }
    wait(channel.wakeup.as_fd(), what);
    channel.wakeup.clear();
    // The daemon watches for edges; who polls for levels must read the counter, which this peer does not play with.
    if is_daemon && !channel.producer.is_stream() {
        let _ = nix::unistd::read(channel.wakeup.as_fd(), &mut [0; 8]);
    }
    channel.consumer.disarm();
    channel.producer.flush().unwrap();
}

/// Lengths and bytes of the payloads, the same on both sides.
struct Pattern(fastrand::Rng);

impl Pattern {
    fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self, most: usize) -> Vec<u8> {
        let len = match self.0.u8(..) {
            0..160 => self.0.usize(..200),
            160..250 => self.0.usize(..2000),
            _ => self.0.usize(..=most),
        };
        let first = self.0.u8(..);
        (0..len).map(|n| first.wrapping_add((n % 251) as u8)).collect()
    }
}

/// Says record `id` with a payload, as the daemon or as a program does. False: there is no room.
fn say(channel: &mut Channel, id: u32, bytes: &[u8], is_daemon: bool) -> bool {
    let len = bytes.len() as u32;
    if is_daemon {
        let said = Completion::Reply { request: id, status: Status::Ok, value: 7, body_len: len };
        return channel.producer.push(&said, bytes);
    }
    let (to, payload) = (([127, 42, 0, 4], 9).into(), Where::Inline(len));
    let said = Submission::Send { socket: 5, id, to, wants_end: true, mode: None, payload };
    channel.producer.push(&said, bytes)
}

/// Sends and receives `count` records at once, and checks all that comes. How many bells it rang.
fn exchange(channel: &mut Channel, count: u32, is_daemon: bool) -> u64 {
    let (mut out, mut expected) = (Pattern::new(is_daemon.into()), Pattern::new((!is_daemon).into()));
    // Both sides have the same limit.
    let most = channel.producer.max_inline().min(100_000);
    let (mut sent, mut got, mut bells) = (0, 0, 0);
    let mut next = out.next(most);
    while sent < count || got < count || channel.producer.has_pending() {
        let before = (sent, got);
        for _ in 0..20 {
            if sent == count || !say(channel, sent, &next, is_daemon) {
                break;
            }
            sent += 1;
            next = out.next(most);
        }
        if let Some(bell) = channel.producer.publish() {
            bell.ring();
            bells += 1;
        }
        // Who has all may hang up.
        while got < count
            && let Some(record) = channel.consumer.next().unwrap()
        {
            check(&record, got, &expected.next(most), is_daemon);
            got += 1;
        }
        if let Some(bell) = channel.consumer.release() {
            bell.ring();
            bells += 1;
        }
        let room = sent == count || channel.producer.want_room(next.len());
        // Room for the next record need not be asked for while there is some: then it is written first.
        let idle = (sent, got) == before && (sent == count || !room);
        let ended = sent == count && got == count && !channel.producer.has_pending();
        if idle && !ended && (got == count || channel.consumer.arm().unwrap()) {
            sleep(channel, is_daemon);
        }
    }
    bells
}

fn check(record: &Record<'_>, number: u32, expected: &[u8], is_daemon: bool) {
    if is_daemon {
        let said = record.submission().unwrap();
        assert!(matches!(said, Submission::Send { id, socket: 5, .. } if id == number), "{number}: {said:?}");
    } else {
        let said = record.completion().unwrap();
        assert!(matches!(said, Completion::Reply { request, value: 7, .. } if request == number), "{said:?}");
    }
    let mut body = vec![0; record.body_len()];
    record.copy_to(&mut body);
    assert!(body == expected, "record {number} of {} bytes", expected.len());
}

const RECORDS: u32 = 20_000;

fn full_speed(test: &str, stream: bool) {
    if let Some((_, path)) = role() {
        let mut attached = child(&path, stream);
        let bells = exchange(&mut attached.channel, RECORDS, false);
        assert!(bells < u64::from(RECORDS));
        return;
    }
    let (mut daemon, child, dir) = with_child(test, "program", stream);
    let bells = exchange(&mut daemon.channel, RECORDS, true);
    println!("{RECORDS} records each way, stream {stream}: {bells} bells");
    // A bell for each record would mean that it rings while the other side is awake.
    assert!(bells < u64::from(RECORDS) / 2, "{bells} bells for {RECORDS} records");
    ended(child, &dir);
}

#[test]
fn records_pass_between_processes_at_full_speed_through_shared_memory() {
    full_speed("records_pass_between_processes_at_full_speed_through_shared_memory", false);
}

#[test]
fn records_pass_between_processes_at_full_speed_over_the_socket() {
    full_speed("records_pass_between_processes_at_full_speed_over_the_socket", true);
}

/// Writes all over the memory that it was given, until it is killed or the daemon is gone.
fn scribble(path: &Path) -> io::Result<()> {
    use rds_core::attach::{Access, SharedMemory};
    // A program that does not keep to the protocol takes the descriptors by itself.
    let socket = UnixStream::connect(path)?;
    io::Write::write_all(&mut &socket, &Hello::default().encode())?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 512];
    let flags = rustix::net::RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(&socket, &mut [io::IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let rustix::net::RecvAncillaryMessage::ScmRights(came) = message {
            fds.extend(came);
        }
    }
    let memory = SharedMemory::map(fds[0].as_fd(), 4096 + (16 << 10), Access::ReadWrite)?;
    assert!(
        SharedMemory::map(fds[1].as_fd(), 4096, Access::ReadWrite).is_err(),
        "the daemon's is not to be written"
    );
    rustix::io::ioctl_fionbio(&fds[2], false)?;
    let mut rng = fastrand::Rng::new();
    loop {
        for _ in 0..rng.usize(..50) {
            let at = 4096 + rng.usize(..16 << 10) / 16 * 16;
            let mut head = [0; 32];
            head[..4].copy_from_slice(&rng.u32(..300).to_ne_bytes());
            head[4] = rng.u8(..12);
            head[5] = rng.u8(..4);
            memory.copy_in(at.min(4096 + (16 << 10) - 32), &head);
        }
        let word = memory.word([0, 64, 128, 192][rng.usize(..4)]);
        let value = match rng.u8(..8) {
            0 => rng.u64(..),
            1 => 0,
            _ => word.load(std::sync::atomic::Ordering::Relaxed).wrapping_add(rng.u64(..64) * 16),
        };
        word.store(value, std::sync::atomic::Ordering::Relaxed);
        if rng.u8(..4) == 0 {
            rustix::io::write(&fds[2], &1_u64.to_ne_bytes())?;
        }
    }
}

#[test]
fn a_program_that_scribbles_over_its_memory_ends_its_own_session_alone() {
    if let Some((_, path)) = role() {
        // It ends by being killed, or when the daemon's ends are closed.
        let _ = scribble(&path);
        return;
    }
    let mut violations = 0;
    for _ in 0..10 {
        let test = "a_program_that_scribbles_over_its_memory_ends_its_own_session_alone";
        let (mut daemon, mut child, dir) = with_child(test, "scribbler", false);
        let said = Completion::Reply { request: 1, status: Status::Ok, value: 7, body_len: 100 };
        let fault = 'session: loop {
            for _ in 0..100 {
                match daemon.channel.consumer.next() {
                    Ok(Some(record)) => {
                        let _ = record.submission();
                        record.copy_to(&mut vec![0; record.body_len()]);
                    }
                    Ok(None) => break,
                    Err(fault) => break 'session fault,
                }
            }
            if let Some(bell) = daemon.channel.consumer.release() {
                bell.ring();
            }
            if !daemon.channel.producer.push(&said, &[1; 100])
                && let Some(fault) = daemon.channel.producer.fault()
            {
                break fault;
            }
            if let Some(bell) = daemon.channel.producer.publish() {
                bell.ring();
            }
            daemon.channel.producer.want_room(100);
        };
        assert!(matches!(fault, Fault::Violation(_)), "{fault}");
        violations += 1;
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }
    assert_eq!(violations, 10);
}
