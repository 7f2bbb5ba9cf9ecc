//! The process that becomes the command.

use super::{Args, NOT_RUN};
use crate::ended::Ended;
use crate::output::complain;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use weir_fuse::namespace::{Peer, cover, cover_all};
use weir_tools::failure::{Failure, Result};

/// Becomes the command; returns only if that fails.
pub(super) fn run(number: i32, args: &Args) -> Result<Ended> {
    let covered = Peer::inherited(number).and_then(|peer| match &args.stage {
        Some(stage) => cover_all(&peer, stage),
        None => cover(&peer, &args.path),
    });
    if let Err(error) = covered {
        let failure = Failure::new("run a command behind a mount", error.to_string());
        complain(&failure.advice(
            "the kernel or a container may refuse namespaces or FUSE to this user; run as root, or \
             allow them (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)",
        ));
        return Ok(Ended::With(NOT_RUN));
    }
    let Some((program, rest)) = args.command.split_first() else { return Ok(Ended::With(NOT_RUN)) };
    let error = Command::new(program).args(rest).exec();
    complain(&Failure::new(format!("run {}", program.to_string_lossy()), error.to_string()));
    Ok(Ended::With(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }))
}
