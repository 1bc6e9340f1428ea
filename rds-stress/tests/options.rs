//! The command line: the reference's options, and what is refused.

use std::ffi::OsString;
use std::time::Duration;

use rds_client::Mode;
use rds_stress::block::Block;
use rds_stress::cli::{Part, Plan, Stop, parse};
use rds_stress::error::Failure;
use rds_stress::out::Out;

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
    assert_eq!((settings.node.listen_port, settings.node.dial_port, settings.node.lanes), (7000, 7001, 4));
    assert_eq!(plan(ours).out, Out::Stderr);
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
        ("--lanes 3", "--lanes", "1, 2, 4 or 8"),
        ("--lanes 0", "--lanes", "1, 2, 4 or 8"),
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
                   --start-delay --warmup --drain --rds-port --listen-port --dial-port --lanes --header-bytes --peer-version";
    for option in options.split_whitespace() {
        assert!(long.contains(option), "{option}");
        assert!(short.contains(option), "{option}");
    }
}
