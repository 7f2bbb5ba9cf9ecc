//! The choice of the engine, and the report.

use super::options::{Args, Engine, NOT_EXECUTED, NOT_FOUND, NOT_RUN};
use super::plain::Comparison;
use super::report::{Ran, Report, Run, Since, Watch};
use super::{mounted, watched};
use crate::ended::Ended;
use crate::output::{complain, say};
use std::path::PathBuf;
use std::sync::Arc;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::memory::check_budget;

pub(super) fn run(args: &Args) -> Result<Ended> {
    let (paths, comparison) = match prepared(args) {
        Ok(prepared) => prepared,
        Err(failure) => return Ok(not_run(&failure)),
    };
    let wants_report = args.report || args.compare || args.json.wanted();
    let watch = wants_report.then(|| Arc::new(Watch::default()));
    let since = Since::now();
    let (engine, ran) = first_that_goes(args, &paths, watch.as_ref())?;
    let run = match ran {
        Ok(run) => run,
        Err(failure) => return Ok(not_run(&failure)),
    };
    run.failures.iter().for_each(complain);
    if let Some(watch) = watch {
        let mut report = Report::new(engine, &watch, &run, since.cost());
        match comparison {
            Some(comparison) if is_comparable(&run) => match comparison.run(&args.command) {
                Ok(plain) => report.compare(&plain, &watch),
                Err(failure) => complain(&failure),
            },
            // In the JSON, `plain` is missing.
            Some(_) if !args.json.wanted() => {
                say(
                    "weir: not compared, because of the failures above, or because the command was ended by a \
                     signal or could not be executed",
                );
            }
            _ => {}
        }
        report.print(args.json.wanted())?;
    }
    Ok(run.ended())
}

/// The directories asked for, and the comparison.
fn prepared(args: &Args) -> Result<(Vec<PathBuf>, Option<Comparison>)> {
    check_budget(args.budget)?;
    let mut paths = Vec::new();
    for path in &args.path {
        paths.push(path.canonicalize().asked(|| format!("find {}", path.display()))?);
    }
    // Those above come first, so that they do not cover those within them.
    paths.sort();
    paths.dedup();
    if paths.first().is_some_and(|path| path.parent().is_none()) {
        // A process keeps its root directory when another one is mounted on it. Without paths, it gets a new one.
        paths.clear();
    }
    Ok((paths, args.compare.then(Comparison::new).transpose()?))
}

/// The command has not begun. Programs such as grep give a meaning of their own to the exit code of other failures.
fn not_run(failure: &Failure) -> Ended {
    complain(failure);
    Ended::With(NOT_RUN)
}

/// Whether the command ran to its end, and ended by itself.
fn is_comparable(run: &Run) -> bool {
    let ran = |code| ![NOT_EXECUTED, NOT_FOUND].map(i32::from).contains(&code);
    run.failures.is_empty() && run.status.code().is_some_and(ran)
}

/// Runs the command with the engine asked for; by default, with the first one that is possible here.
///
/// # Errors
/// The command has begun.
fn first_that_goes(
    args: &Args,
    paths: &[PathBuf],
    watch: Option<&Arc<Watch>>,
) -> Result<(Engine, Ran)> {
    let mut no_mount = None;
    if args.engine != Engine::Watch {
        let ran = mounted::run(args, paths, watch.cloned())?;
        match ran {
            Err(failure) if args.engine == Engine::Auto => no_mount = Some(failure),
            ran => return Ok((Engine::Mount, ran)),
        }
    }
    let ran = watched::run(args, paths, watch.cloned())?;
    if let (Err(_), Some(failure)) = (&ran, no_mount) {
        complain(&failure);
    }
    Ok((Engine::Watch, ran))
}
