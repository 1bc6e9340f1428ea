//! The command line: the reference's options, and what is refused.

use std::ffi::OsString;
use std::time::Duration;

use rds_client::Mode;
use rds_stress::backend::Choice;
use rds_stress::block::Block;
use rds_stress::cli::{Part, Plan, Stop, parse};
use rds_stress::error::Failure;
use rds_stress::out::Out;
use rds_stress::roles::Lanes;

fn run(line: &str) -> Result<Plan, Stop> {
    parse(std::iter::once("rds-stress").chain(line.split_whitespace()).map(OsString::from))
}

fn plan(line: &str) -> Plan {
    run(line).unwrap_or_else(|e| panic!("{line}: {e:?}"))
}

fn failure(line: &str) -> Failure {
    match run(line) {
        Err(Stop::Wrong(failure)) => {
            assert_eq!(failure.message.lines().count(), 1, "{}", failure.message);
            failure
        }
        other => panic!("{line}: {other:?}"),
    }
}

fn default_block() -> Block {
    Block::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into())
}

fn block(line: &str) -> Block {
    plan(line).offer.block([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), None)
}

#[test]
fn without_options_it_is_passive_with_the_references_defaults() {
    let plan = plan("");
    assert_eq!(plan.part, Part::Passive);
    assert_eq!(
        (plan.settings.port, plan.settings.own, plan.json, plan.out),
        (4000, None, false, Out::Stdout)
    );
    assert_eq!((plan.settings.node.listen_port, plan.settings.node.dial_port), (16385, 16385));
    assert_eq!(block(""), default_block());
}

#[test]
fn every_option_that_travels_arrives_in_the_block() {
    let line = "-s h -p 5000 -a 100 -q 4k -o -d 0x10 -t 010 -T 60 -Q 7 -I 3 -M 2 -v -z -R -V --show-params --show-perfdata \
                --connect-retries 2 --use-cong-monitor 0 --rdma-use-once 1 --rdma-use-get-mr 1 --rdma-use-fence 0 \
                --rdma-cache-mrs 1 --rdma-use-notify 1 --rdma-alignment 8 --rdma-key-o-meter";
    let expected = Block {
        starting_port: 5000,
        ack_size: 100,
        req_size: 4096,
        simplex: true,
        depth: 16,
        tasks: 8,
        run_time: 60,
        tos: 7,
        rdma_vector: 3,
        rw_mode: 2,
        verify: true,
        summary_only: true,
        rtprio: true,
        tracing: true,
        show_params: true,
        show_perfdata: true,
        connect_retries: 2,
        use_cong_monitor: false,
        rdma_use_once: true,
        rdma_use_get_mr: true,
        rdma_use_fence: false,
        rdma_cache_mrs: true,
        rdma_alignment: 8,
        rdma_key_o_meter: true,
        ..default_block()
    };
    assert_eq!(block(line), expected);
}

#[test]
fn our_own_options_do_not_travel() {
    let ours = "-s h --start-delay 0.1 --warmup 0.5 --drain 0 --json --rds-port 7000 --dial-port 7001 --lanes 4 -c \
                --show-histogram --show-outliers 9 --cancel-sent-to --abort-after 3 --peer-version 2.3.0 --disable-inq \
                --zcopy on --pin-hold 5";
    assert_eq!(block(ours).encode("2.0.7"), block("-s h").encode("2.0.7"));
    let settings = plan(ours).settings;
    assert_eq!(settings.local.schedule.start_delay, Duration::from_millis(100));
    assert_eq!(settings.local.schedule.drain, Duration::ZERO);
    assert_eq!((settings.node.listen_port, settings.node.dial_port), (7000, 7001));
    assert_eq!(settings.node.lanes, Lanes::Number(4));
    assert_eq!(plan(ours).out, Out::Stderr);
}

#[test]
fn lanes_are_a_number_or_left_to_the_processors() {
    for n in 1..=8 {
        assert_eq!(plan(&format!("-s h --lanes {n}")).settings.node.lanes, Lanes::Number(n));
    }
    assert_eq!(plan("-s h --lanes auto").settings.node.lanes, Lanes::Auto);
    assert_eq!(plan("-s h").settings.node.lanes, Lanes::Number(1));
}

#[test]
fn zero_copy_is_set_for_both_directions_or_for_each() {
    use Mode::{Auto, Off, On};
    for (line, send, receive, shown) in [
        ("", Auto, Off, false),
        ("--zcopy off", Off, Off, true),
        ("--zcopy on", On, On, true),
        ("--zcopy auto", Auto, Auto, true),
        ("--zcopy-send on", On, Off, true),
        ("--zcopy-recv off", Auto, Off, true),
        ("--zcopy on --zcopy-recv off", On, Off, true),
        ("--zcopy-send off --zcopy on", Off, On, true),
    ] {
        let modes = plan(line).settings.local.zero_copy;
        assert_eq!((modes.send, modes.receive, modes.shown), (send, receive, shown), "{line}");
        assert_eq!(modes.hold, Duration::from_secs(30));
    }
    assert_eq!(plan("--pin-hold 0.5").settings.local.zero_copy.hold, Duration::from_millis(500));
}

#[test]
fn a_backend_is_chosen_by_name_and_ours_is_the_default() {
    for (line, backend) in [
        ("", Choice::Rds),
        ("--backend rds", Choice::Rds),
        ("--backend kernel", Choice::Kernel),
        ("--backend tcp", Choice::Tcp),
    ] {
        assert_eq!(plan(line).backend, backend, "{line}");
    }
    assert!(failure("--backend udp").message.contains("rds, kernel or tcp"));
    assert_eq!(
        block("-s h --backend kernel").encode("2.0.7"),
        block("-s h").encode("2.0.7"),
        "it does not travel"
    );
}

#[test]
fn options_that_a_backend_has_no_use_for_are_refused_by_name() {
    for (line, word) in [
        ("--backend kernel --rds-port 17000", "16385"),
        ("--backend kernel --listen-port 17000", "16385"),
        ("--backend kernel --dial-port 17000", "16385"),
        ("--backend kernel --lanes 2", "the kernel decides"),
        ("--backend kernel --pin-hold 3", "acknowledged"),
        ("--backend kernel --zcopy-recv on", "copies"),
        ("--backend kernel --zcopy auto", "on or off"),
        ("--backend kernel --zcopy-send auto", "on or off"),
        ("--backend tcp --lanes 1", "each pair of tasks"),
        ("--backend tcp --zcopy on", "copies"),
        ("--backend tcp --zcopy-send off", "copies"),
        ("--backend tcp --cancel-sent-to", "cancelled"),
        ("--backend tcp --use-cong-monitor 0", "congested"),
    ] {
        let failure = failure(line);
        assert_eq!(failure.code, 1, "{line}: {failure}");
        assert!(failure.message.contains(word) && failure.message.contains("backend"), "{line}: {failure}");
    }
    for line in [
        "--backend rds --lanes 2 --zcopy auto --rds-port 7",
        "--backend tcp --rds-port 7",
        "--backend kernel --use-cong-monitor 0",
    ] {
        plan(line);
    }
}

#[test]
fn a_daemon_is_attached_to_where_it_is_said_or_where_it_is_by_default() {
    for (line, path) in [
        ("", None),
        ("--attach", Some(rds_client::DEFAULT_PATH)),
        ("--attach /x/rds.sock", Some("/x/rds.sock")),
        ("--attach -s h", Some(rds_client::DEFAULT_PATH)),
    ] {
        assert_eq!(plan(line).settings.node.attach.as_deref(), path.map(std::path::Path::new), "{line}");
    }
    // What the daemon has decided for all its clients.
    for option in
        ["--rds-port 7", "--listen-port 7", "--dial-port 7", "--lanes 2", "--pin-hold 3", "--zcopy-recv on"]
    {
        let failure = failure(&format!("--attach {option}"));
        assert_eq!(failure.code, 1, "{option}: {failure}");
        let name = option.split(' ').next().unwrap();
        assert!(
            failure.message.contains(name) && failure.message.contains("--attach"),
            "{option}: {failure}"
        );
    }
    for backend in ["kernel", "tcp"] {
        assert!(failure(&format!("--attach --backend {backend}")).message.contains("daemon"), "{backend}");
    }
    let modes = plan("--attach --zcopy on").settings.local.zero_copy;
    assert_eq!((modes.send, modes.receive), (Mode::On, Mode::Off), "nothing is mapped through a daemon");
}

#[test]
fn tasks_are_processes_only_where_several_can_use_what_carries_them() {
    assert!(!plan("--attach").settings.node.processes);
    for line in ["--attach --processes -t 4", "--backend kernel --processes"] {
        assert!(plan(line).settings.node.processes, "{line}");
    }
    for (line, word) in [
        ("--processes", "--attach"),
        ("--loopback --processes", "--attach"),
        ("--backend tcp --processes", "one process"),
        ("--backend kernel --zcopy on --processes", "zero copy"),
    ] {
        let failure = failure(line);
        assert_eq!(failure.code, 1, "{line}: {failure}");
        assert!(
            failure.message.contains(word) && failure.message.contains("--processes"),
            "{line}: {failure}"
        );
    }
}

#[test]
fn the_kernel_copies_unless_zero_copy_is_on_and_always_receives_copies() {
    use Mode::{Off, On};
    for (line, send) in
        [("", Off), ("--zcopy on", On), ("--zcopy-send on", On), ("--zcopy on --zcopy-send off", Off)]
    {
        let modes = plan(&format!("--backend kernel {line}")).settings.local.zero_copy;
        assert_eq!((modes.send, modes.receive), (send, Off), "{line}");
    }
}

#[test]
fn the_default_ack_is_the_header() {
    let ack = |line: &str, header| {
        let offer = plan(line).offer;
        let v4 = offer.block([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), header).ack_size;
        (v4, offer.block("::2".parse().unwrap(), "::1".parse().unwrap(), None).ack_size)
    };
    assert_eq!(ack("", None), (63, 96));
    assert_eq!(ack("", Some(60)), (60, 96));
    assert_eq!(ack("-a 200", Some(60)), (200, 200));
}

#[test]
fn options_are_read_as_getopt_reads_them() {
    assert_eq!(block("-t4 -d8 -ov"), block("-t 4 -d 8 -o -v"));
    assert_eq!(block("--tasks=4 --req-bytes 2k"), block("-t 4 -q 2048"));
    assert_eq!(block("-t 4 -t 5"), block("-t 5"));
    assert_eq!(block("--one --report-sum"), block("-o -z"));
    assert_eq!(plan("-s ::1").part, Part::Active("::1".into()));
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_what_is_wrong() {
    for (line, word) in [
        ("--nonsense", "--nonsense"),
        ("-x", "-x"),
        ("host", "'host'"),
        ("-t", "--tasks"),
        ("--rdma", "--rdma"),
        ("-s h --loopback", "--loopback"),
        ("-r 127.0.0.1 --loopback", "--loopback"),
        ("--json=1", "--json"),
    ] {
        let failure = failure(line);
        assert_eq!(failure.code, 2, "{line}: {failure}");
        assert!(failure.message.contains(word), "{line}: {failure}");
    }
}

#[test]
fn a_wrong_value_ends_with_1_and_says_what_is_possible() {
    for (line, option, word) in [
        ("-t 65536", "--tasks", "65535"),
        ("-t many", "--tasks", "not a number"),
        ("-q 4g", "--req-bytes", "4294967295"),
        ("-Q 256", "--tos", "255"),
        ("-I 513", "--rdma-buffers", "512"),
        ("-M 3", "--rdma-mode", "2"),
        ("--use-cong-monitor 2", "--use-cong-monitor", "1"),
        ("--lanes 9", "--lanes", "1 to 8, or auto"),
        ("--lanes 0", "--lanes", "1 to 8, or auto"),
        ("--lanes many", "--lanes", "1 to 8, or auto"),
        ("--start-delay soon", "--start-delay", "0.1"),
        ("--warmup=-1", "--warmup", "86400"),
        ("--drain NaN", "--drain", "86400"),
        ("--drain inf", "--drain", "86400"),
        ("--zcopy always", "--zcopy", "off, on or auto"),
        ("--zcopy-send ON", "--zcopy-send", "off, on or auto"),
        ("--zcopy-recv=", "--zcopy-recv", "off, on or auto"),
        ("--pin-hold long", "--pin-hold", "86400"),
        ("--peer-version new", "--peer-version", "2.0.7"),
        ("--peer-version 2.34567890123456", "--peer-version", "2.0.7"),
        ("--rds-port 0", "--rds-port", "65535"),
        ("--dial-port 0", "--dial-port", "65535"),
    ] {
        let failure = failure(line);
        assert_eq!(failure.code, 1, "{line}: {failure}");
        assert!(failure.message.contains(option) && failure.message.contains(word), "{line}: {failure}");
    }
}

#[test]
fn what_tcp_and_user_space_cannot_do_is_refused_with_1() {
    for (line, word) in [
        ("-D 4k -s h", "RDMA"),
        ("--async", "Oracle"),
        ("--reset -s h", "Oracle"),
        ("--always-bursty", "JSON"),
        ("--sync-always-bursty", "JSON"),
    ] {
        let failure = failure(line);
        assert_eq!(failure.code, 1, "{line}: {failure}");
        assert!(failure.message.contains(word) && failure.message.contains("leave"), "{line}: {failure}");
    }
}

#[test]
fn help_names_every_option_that_is_not_for_rdma_alone() {
    let Err(Stop::Show(long, 0)) = run("--help") else { panic!("--help shows help and ends with 0") };
    let Err(Stop::Show(short, 2)) = run("-h") else { panic!("-h shows help and ends with 2") };
    let options = "--recv-addr --port --send-addr --ack-bytes --req-bytes --one-way --depth --tasks --time --tos --rdma-bytes \
                   --rdma-buffers --rdma-mode --verify --report-cpu --report-summary --rtprio --trace --show-params \
                   --show-perfdata --connect-retries --use-cong-monitor --show-outliers --show-histogram --reset --async \
                   --cancel-sent-to --abort-after --disable-inq --always-bursty --sync-always-bursty --json --loopback \
                   --start-delay --warmup --drain --rds-port --listen-port --dial-port --lanes --header-bytes --peer-version --backend --attach --processes";
    for option in options.split_whitespace() {
        assert!(long.contains(option), "{option}");
        assert!(short.contains(option), "{option}");
    }
}
