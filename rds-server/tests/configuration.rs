//! The program and its configuration: what it says of one, and what it runs with.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.0.path().join("rds-server.toml");
        std::fs::write(&path, text).expect("it can be written");
        path
    }
}

/// What the program says to these options, with this environment and no other variable of its own.
fn run(file: &Path, args: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rds-server"));
    command.env_clear().envs(environment.iter().copied()).arg("--config").arg(file).args(args);
    let Output { status, stdout, stderr } = command.output().expect("the program is built");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_good_configuration_is_said_to_be_good_and_nothing_is_started() {
    let folder = Folder::new();
    // An address that no host has: it is not tried.
    let file = folder.file("[node]\naddress = '198.51.100.1'\n");
    let (status, said, errors) = run(&file, &["--check-config"], &[]);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(said.contains("the configuration is good") && said.contains("rds-server.toml"), "{said}");
    let (status, _, errors) =
        run(&file, &["--check-config"], &[("RDS_SERVER_DATA_ARENAS", "1m"), ("RDS_SERVER_PORT", "tcp://x")]);
    assert_eq!(status, Some(0), "it may be another's");
    assert!(
        errors.contains("RDS_SERVER_DATA_ARENAS is not known: did you mean RDS_SERVER_DATA_ARENA?"),
        "{errors}"
    );
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_its_place_before_anything_is_started() {
    let folder = Folder::new();
    let file = folder.file("[node]\naddres = '10.0.0.1'\n[quotas]\nmax-clients = -1\n");
    let environment = [("RDS_SERVER_LIFE_DRAIN", "soon")];
    for args in [&["--check-config"][..], &["--print-config"], &["doctor"], &[]] {
        let (status, said, errors) = run(&file, args, &environment);
        assert_eq!((status, said.as_str()), (Some(2), ""), "{args:?}: {errors}");
        let lines: Vec<_> = errors.lines().collect();
        let at = |line| format!("rds-server: {}:{line}: ", file.display());
        assert_eq!(
            lines,
            [
                &*format!("{}unknown key 'node.addres': did you mean 'node.address'?", at(2)),
                &*format!(
                    "{}quotas.max-clients = '-1': give a whole number from 0 to 9223372036854775807",
                    at(4)
                ),
                "rds-server: RDS_SERVER_LIFE_DRAIN in the environment: 'soon': give a whole number from 0 to 86400",
            ],
            "{args:?}"
        );
    }
    let (status, _, errors) = run(&folder.file(""), &[], &[]);
    assert_eq!(status, Some(2));
    assert!(errors.contains("no node to serve: give an address of this host, with --address"), "{errors}");
    let (status, _, errors) = run(&folder.0.path().join("missing"), &[], &[]);
    assert_eq!(status, Some(2));
    assert!(errors.contains("missing: cannot be read: No such file or directory"), "{errors}");
}

#[test]
fn what_is_printed_is_a_file_that_says_the_same_and_where_each_value_is_from() {
    let folder = Folder::new();
    let file =
        folder.file("[node]\naddress = ['10.0.0.1']\n[quotas]\nmax-clients = 5\nmax-clients-per-uid = 4\n");
    let environment =
        [("RDS_SERVER_QUOTAS_MAX_CLIENTS", "6"), ("RDS_SERVER_PEERS_IN_ALLOW", "10.0.0.0/8 fd00::/8")];
    let (status, printed, errors) = run(&file, &["--print-config", "--max-clients", "7"], &environment);
    assert_eq!(status, Some(0), "{errors}");
    for line in [
        "max-clients = 7  # --max-clients".to_owned(),
        format!("max-clients-per-uid = 4  # {}:5", file.display()),
        "in-allow = [\"10.0.0.0/8\", \"fd00::/8\"]  # RDS_SERVER_PEERS_IN_ALLOW".to_owned(),
        "listen-port = 16385  # default".to_owned(),
    ] {
        assert!(printed.lines().any(|is| is == line), "{line}\n{printed}");
    }
    let values = |text: &str| -> Vec<String> {
        text.lines().skip(1).map(|line| line.split("  #").next().unwrap_or_default().to_owned()).collect()
    };
    let (status, again, errors) = run(&folder.file(&printed), &["--print-config"], &[]);
    assert_eq!((status, values(&again)), (Some(0), values(&printed)), "{errors}");
}

#[test]
fn the_shipped_example_is_a_good_configuration_once_an_address_is_given() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/rds-server.toml");
    let (status, _, errors) = run(&example, &["--check-config", "--address", "10.0.0.1"], &[]);
    assert_eq!(status, Some(0), "{errors}");
}
