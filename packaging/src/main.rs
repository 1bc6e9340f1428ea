//! Writes man pages and shell completions of all programs: `rds-packaging DIR`.
//!
//! Both come from the parsers of the programs, so they have every option there is, and no other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// Shells, and where a distribution looks for their completions.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/vendor-completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir] = args.as_slice() else {
        eprintln!("usage: rds-packaging DIR: writes DIR/man and the completions of bash, zsh and fish");
        return ExitCode::from(2);
    };
    match all(Path::new(dir)) {
        Ok(files) => {
            files.iter().for_each(|file| println!("{}", file.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rds-packaging: {}: {error}", Path::new(dir).display());
            ExitCode::FAILURE
        }
    }
}

/// The programs, with the section of the manual to which each belongs.
fn programs() -> Vec<(Command, &'static str)> {
    vec![
        (rds_server::cli::Cli::command(), "8"),
        (rds_stress::cli::Cli::command(), "1"),
        (rds_stress::tools::info::Cli::command(), "8"),
        (rds_stress::tools::ping::Cli::command(), "8"),
    ]
}

/// Writes everything; returns what was written.
fn all(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (command, section) in programs() {
        man(&command, section, &dir.join("man"), &mut files)?;
        let name = command.get_name().to_owned();
        for (shell, folder) in SHELLS {
            let folder = dir.join(folder);
            fs::create_dir_all(&folder)?;
            files.push(clap_complete::generate_to(shell, &mut command.clone(), &name, folder)?);
        }
    }
    Ok(files)
}

/// The page of a command, and one for each of its subcommands.
fn man(command: &Command, section: &str, dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let page = |command: Command, files: &mut Vec<PathBuf>| {
        let file = dir.join(format!("{}.{section}", command.get_name()));
        let mut text = Vec::new();
        let man =
            clap_mangen::Man::new(command).section(section).source("rds").manual("Reliable Datagram Sockets");
        man.render(&mut text)?;
        fs::write(&file, text)?;
        files.push(file);
        io::Result::Ok(())
    };
    let name = command.get_name().to_owned();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        // "rds-server doctor" has the page rds-server-doctor, as git's commands do.
        let whole = format!("{name}-{}", sub.get_name());
        page(sub.clone().name(whole).bin_name(format!("{name} {}", sub.get_name())), files)?;
    }
    page(command.clone().disable_help_subcommand(true), files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options of a command, as a user writes them.
    fn options(command: &Command) -> Vec<String> {
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        shown.filter_map(|arg| arg.get_long()).map(|long| format!("--{long}")).collect()
    }

    #[test]
    fn every_option_of_every_program_is_in_its_page_and_its_completions() {
        let dir = tempfile::tempdir().unwrap();
        let files = all(dir.path()).unwrap();
        for (command, section) in programs() {
            let name = command.get_name().to_owned();
            let page = fs::read_to_string(dir.path().join(format!("man/{name}.{section}"))).unwrap();
            let bash =
                fs::read_to_string(dir.path().join(format!("bash-completion/completions/{name}.bash")))
                    .unwrap();
            assert!(!options(&command).is_empty(), "{name} has options");
            for option in options(&command) {
                assert!(page.contains(&option.replace('-', "\\-")), "{name}.{section} has no {option}");
                assert!(bash.contains(&option), "the completions of {name} have no {option}");
            }
            for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
                let page = dir.path().join(format!("man/{name}-{}.{section}", sub.get_name()));
                assert!(files.contains(&page), "{}", page.display());
            }
        }
    }
}
