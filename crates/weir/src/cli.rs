//! The command line, and the exit code of a command.
//!
//! Exit codes: 0 success; 1 failure (reported on standard error); 2 invalid command line. A command that a signal to
//! stop interrupts ends by that signal, which shells show as 128 and its number. `weir lock` and `weir run` exit with
//! the code of the command that they run, or end by the signal to stop that ended it; `weir run` with 125
//! if it has not run the command.

use crate::by_signal::end_by;
use crate::commands::{
    bench, cat, check, checksum, chmod, chown, completions, cp, descriptors, df, du, evict,
    exports, file_size_limit, find, last_stop, ln, lock, ls, man, map, mkdir, mount, mount_helper,
    mv, rm, run, serve, stat, status, sync, top, touch, tree, truncate, warm,
};
use crate::ended::Ended;
use crate::output::{complain, end_output};
use crate::system_log::Messages;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use weir_tools::failure::{Failure, Result};

/// Serves, copies and inspects large and sparse files, over NFS and locally.
#[derive(Parser)]
#[command(name = "weir", version, propagate_version = true, subcommand_required = true)]
#[command(arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "A LOCATION is a local path, or nfs://HOST[:PORT]/PATH[?OPTIONS] \
with options as for mount.nfs: nfs://filer/images?vers=4.2&noreadplus\n\
`weir help COMMAND` explains a command, with examples.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Mount(mount::Args),
    Run(run::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Cp(cp::Args),
    Sync(sync::Args),
    Map(map::Args),
    Df(df::Args),
    Du(du::Args),
    Tree(tree::Args),
    Mkdir(mkdir::Args),
    Mv(mv::Args),
    Rm(rm::Args),
    Touch(touch::Args),
    Ln(ln::Args),
    Chmod(chmod::Args),
    Chown(chown::Args),
    Truncate(truncate::Args),
    Find(find::Args),
    Checksum(checksum::Args),
    Exports(exports::Args),
    Lock(lock::Args),
    Status(status::Args),
    Top(top::Args),
    Warm(warm::Args),
    Evict(evict::Args),
    Bench(bench::Args),
    Check(check::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Whether standard output is this command's own, and not that of a program that it runs, or of a service.
    fn prints(&self) -> bool {
        match self {
            Self::Serve(args) => args.checks(),
            _ => !matches!(self, Self::Mount(_) | Self::Run(_) | Self::Lock(_)),
        }
    }
}

/// Parses the command line, runs the command, and reports its failure.
pub(crate) fn main() -> ExitCode {
    let args = find::spelled(mount_helper::spelled(std::env::args_os().collect()).into_iter());
    let command = match Cli::try_parse_from(&args) {
        Ok(cli) => cli.command,
        // The program that it does not run may have a meaning of its own for 2.
        Err(error) if error.use_stderr() && args.get(1).is_some_and(|command| command == "run") => {
            let _ = error.print();
            return ExitCode::from(run::NOT_RUN);
        }
        Err(error) => error.exit(),
    };
    let log = match &command {
        Command::Serve(args) => args.log(),
        Command::Mount(args) => args.log(),
        // Warnings carry the server's answer, which the final error may not.
        _ => "warn",
    };
    let prints = command.prints();
    let logging = log_messages(log);
    if let (Command::Run(_), Err(failure)) = (&command, &logging) {
        complain(failure);
        return ExitCode::from(run::NOT_RUN);
    }
    let ended = logging.and_then(|()| run(command)).and_then(|ended| match ended {
        Ended::Done if prints => end_output().map(|()| ended),
        _ => Ok(ended),
    });
    match ended {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Failed) => ExitCode::FAILURE,
        Ok(Ended::Interrupted) => end_by(last_stop()),
        Ok(Ended::By(signal)) => end_by(signal),
        Ok(Ended::With(code)) => ExitCode::from(code),
        Err(failure) => {
            complain(&failure);
            ExitCode::FAILURE
        }
    }
}

/// Ends the program: the command line of `command` lacks `what`.
pub(crate) fn too_few(command: &str, what: &str) -> ! {
    let mut all = Cli::command();
    all.build();
    let found = all.find_subcommand_mut(command).cloned();
    let mut command = found.unwrap_or(all);
    command.error(ErrorKind::TooFewValues, format!("it needs {what}")).exit()
}

fn run(command: Command) -> Result<Ended> {
    // What these start keeps the limits that it would have without them.
    let starts = matches!(command, Command::Run(_) | Command::Lock(_) | Command::Bench(_));
    let _raised = (!starts).then(descriptors::raise);
    if !starts {
        file_size_limit::outlive();
    }
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Run(args) => run::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Cp(args) => cp::run(args),
        Command::Sync(args) => sync::run(args),
        Command::Map(args) => map::run(args),
        Command::Df(args) => df::run(args),
        Command::Du(args) => du::run(args),
        Command::Tree(args) => tree::run(args),
        Command::Mkdir(args) => mkdir::run(args),
        Command::Mv(args) => mv::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Touch(args) => touch::run(args),
        Command::Ln(args) => ln::run(args),
        Command::Chmod(args) => chmod::run(args),
        Command::Chown(args) => chown::run(args),
        Command::Truncate(args) => truncate::run(args),
        Command::Find(args) => find::run(args),
        Command::Checksum(args) => checksum::run(args),
        Command::Exports(args) => exports::run(args),
        Command::Lock(args) => lock::run(args),
        Command::Status(args) => status::run(args),
        Command::Top(args) => top::run(args),
        Command::Warm(args) => warm::run(args),
        Command::Evict(args) => evict::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Check(args) => check::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}

/// Logs what passes `filter`; the environment variable `WEIR_LOG` overrides it.
fn log_messages(filter: &str) -> Result<()> {
    let own = std::env::var("WEIR_LOG").ok();
    let filter = own.as_deref().unwrap_or(filter);
    if let Some(wrong) = wrong_directive(filter) {
        let failure = Failure::new(format!("log as {filter}"), format!("{wrong} is not a level"));
        let advice = "the levels are off, error, warn, info, debug and trace; for one module, write \
                      weir_server=debug,info";
        return Err(failure.advice(advice));
    }
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| Failure::new(format!("log as {filter}"), error.to_string()))?;
    let colour = io::stderr().is_terminal() && console::colors_enabled_stderr();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Messages)
        .with_ansi(colour)
        // It would report them on the same unwritable standard error, and panic.
        .log_internal_errors(false)
        .init();
    Ok(())
}

/// The part of a filter that lacks a valid level. The library takes a single unknown word for a
/// module's name, and logs nothing.
fn wrong_directive(filter: &str) -> Option<&str> {
    let is_level = |level: &str| level.parse::<tracing::metadata::LevelFilter>().is_ok();
    // The library validates filters by span and field.
    filter.split(',').map(str::trim).find(|part| match part.rsplit_once('=') {
        _ if part.is_empty() || part.contains(['[', '{', '}', ']']) => false,
        Some((_, level)) => !is_level(level),
        None => !is_level(part) && !part.contains("::") && !part.starts_with("weir"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_misspelt_log_level_is_not_taken_for_a_module() {
        for fine in ["info", "WARN", "off", "3", "weir_server=debug,info", "weir_client", "a::b"] {
            assert_eq!(wrong_directive(fine), None, "{fine}");
        }
        assert_eq!(wrong_directive("loud"), Some("loud"));
        assert_eq!(wrong_directive("info, weir_server=loud"), Some("weir_server=loud"));
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("weir {}", command.get_name())), "{command}");
        }
    }

    /// A paragraph is one line, which clap wraps at the width of the terminal; lines broken by hand would be ragged.
    #[test]
    fn paragraphs_of_help_are_wrapped_by_clap() {
        let cli = Cli::command();
        let mut commands: Vec<&clap::Command> = cli.get_subcommands().collect();
        let mut paragraphs = 0;
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for paragraph in
                help.split("\n\n").filter(|text| !text.contains("\n  ") && !text.is_empty())
            {
                assert_eq!(paragraph.trim_end().lines().count(), 1, "{command}: {paragraph}");
                paragraphs += 1;
            }
        }
        assert!(paragraphs > 10);
    }
}
