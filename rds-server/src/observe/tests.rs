use rds_core::events::Event;
use rds_core::info::{ClientInfo, NodeStatus, Status};

use super::metrics::{self, catalogue};

/// The tables of docs/metrics.md.
fn reference() -> String {
    let mut text =
        "## Metrics\n\n| metric | type | labels | what it is |\n| --- | --- | --- | --- |\n".to_owned();
    for metric in catalogue() {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        text += &format!(
            "| `{}` | {} | {} | {} |\n",
            metric.name,
            metric.kind.name(),
            labels.join(", "),
            metric.help
        );
    }
    text += "\n## Events\n\n| event | level | what it is |\n| --- | --- | --- |\n";
    for event in Event::ALL {
        let level = event.level().to_string().to_lowercase();
        text += &format!("| `{}` | {level} | {} |\n", event.name(), event.help());
    }
    text
}

#[test]
fn the_documentation_is_what_the_catalogues_say() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let written = std::fs::read_to_string(&path).unwrap();
    let (head, _) = written.split_once("## Metrics\n").expect("a section for metrics");
    let is = format!("{head}{}", reference());
    if std::env::var_os("RDS_WRITE_DOCS").is_some() {
        std::fs::write(&path, &is).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == is,
        "docs/metrics.md is not what the catalogues say: RDS_WRITE_DOCS=1 cargo test -p rds-server --lib observe writes it"
    );
}

#[test]
fn metrics_have_names_of_their_own_that_prometheus_takes() {
    let mut names: Vec<_> = catalogue().into_iter().map(|metric| metric.name).collect();
    for name in &names {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.starts_with("rds_") && name.chars().all(good), "{name}");
    }
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
    for metric in catalogue() {
        let counts = metric.kind == metrics::Kind::Counter;
        assert_eq!(metric.name.ends_with("_total"), counts, "{}", metric.name);
        assert!(!metric.help.contains(['\n', '|', '\\']), "{}", metric.help);
    }
}

#[test]
fn what_a_program_calls_itself_cannot_make_a_sample_of_its_own() {
    let json = r#"{"address":"127.0.0.1","generation":1,"receive_queued":0,"receive_budget":0,"counters":{},
        "zero_copy":null,"peers":[],"sockets":[]}"#;
    let json =
        json.replace("null", &serde_json::to_string(&rds_core::info::NodeZeroCopy::default()).unwrap());
    let mut node: NodeStatus = serde_json::from_str(&json).unwrap();
    let program = "evil\"} 1\nrds_state{state=\"ready\"} 7\n\\".to_owned();
    node.clients.push(ClientInfo { session: 3, program, ..ClientInfo::default() });
    let mut status = Status::new("1", 1);
    status.nodes.push(node);
    let text = metrics::render(&status);
    let line = text.lines().find(|line| line.starts_with("rds_client_info{")).unwrap();
    assert_eq!(
        line,
        r#"rds_client_info{node="127.0.0.1",client="3",pid="0",uid="0",program="evil\"} 1\nrds_state{state=\"ready\"} 7\n\\"} 1"#
    );
    assert_eq!(text.lines().filter(|line| line.starts_with("rds_state{state=\"ready\"}")).count(), 1);
}
