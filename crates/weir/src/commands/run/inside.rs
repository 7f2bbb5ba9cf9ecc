//! The process that becomes the command.

use super::options::{Args, Engine, NOT_EXECUTED, NOT_FOUND, NOT_RUN};
use crate::commands::descriptors;
use crate::ended::Ended;
use crate::output::complain;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use weir_fuse::namespace::{Peer, cover, cover_all};
use weir_tools::failure::{Failure, Result};
use weir_tools::opens;

/// Becomes the command; returns only if that fails.
pub(super) fn run(number: i32, args: &Args) -> Result<Ended> {
    let peer = match Peer::inherited(number) {
        Ok(peer) => peer,
        Err(error) => {
            complain(&Failure::new("run a command", error.to_string()));
            return Ok(Ended::With(NOT_RUN));
        }
    };
    let prepared = match (args.engine, &args.stage) {
        // From here on, the process outside answers each open.
        (Engine::Watch, _) => {
            opens::install().and_then(|listener| peer.serve(Path::new("opens"), &listener))
        }
        (_, Some(stage)) => cover_all(&peer, stage),
        (_, None) => {
            // The command gets the limit from before.
            let _raised = descriptors::raise();
            cover(&peer, &args.path)
        }
    };
    if let Err(error) = prepared {
        // The process outside says why, or tries another engine.
        let _ = peer.refused(&error.to_string());
        return Ok(Ended::With(NOT_RUN));
    }
    let Some((program, rest)) = args.command.split_first() else { return Ok(Ended::With(NOT_RUN)) };
    let error = Command::new(program).args(rest).exec();
    complain(&Failure::new(format!("run {}", program.to_string_lossy()), error.to_string()));
    let is_there = error.kind() != io::ErrorKind::NotFound;
    Ok(Ended::With(if is_there { NOT_EXECUTED } else { NOT_FOUND }))
}
