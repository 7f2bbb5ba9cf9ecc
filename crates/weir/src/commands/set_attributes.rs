//! The walk of `weir chmod` and `weir chown`: sets attributes of files, and of trees with `-R`.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs};
use crate::ended::Ended;
use weir_tools::failure::{Asked, Result};
use weir_tools::location::Location;
use weir_tools::mounts::Links;
use weir_tools::walk::Walk;
use weir_vfs::{Attr, Caller, SetAttr};

/// The files to change, and how to report it.
pub(super) struct Files<'a> {
    /// The command's name.
    pub(super) command: &'static str,
    /// The attribute, for messages.
    pub(super) attribute: &'static str,
    pub(super) locations: &'a [Location],
    pub(super) links: Links,
    pub(super) recursive: bool,
    pub(super) verbose: bool,
    pub(super) json: &'a JsonArgs,
    pub(super) mount: &'a MountArgs,
}

/// Sets `set` of each file's attributes; files for which it is `None` stay as they are.
pub(super) fn set_attributes(
    files: &Files<'_>,
    set: impl Fn(&Attr) -> Option<SetAttr>,
) -> Result<Ended> {
    let Files { command, attribute, .. } = *files;
    with_mounts(files.mount, async |mounts| {
        let mut report = Report::new(files.json, files.verbose);
        for location in files.locations {
            let found = mounts.place(location, files.links).await;
            let found = found.and_then(|place| Ok((place.existing(command)?.clone(), place)));
            let (attr, place) = match found {
                Ok(found) => found,
                Err(failure) => {
                    report.failed(&failure);
                    continue;
                }
            };
            let mut walk = Walk::new(place, attr, false);
            while let Some(visited) = walk.next() {
                let Some(set) = set(&visited.attr) else { continue };
                let (place, shown) = (&visited.place, &visited.place.shown);
                let changed = place.fs.setattr(&Caller::Own, visited.attr.id, &set).await;
                let changed = changed.map(drop);
                let changed = changed.asked(|| format!("change the {attribute} of {shown}"));
                if changed.is_ok() {
                    let said = || format!("changed the {attribute} of {shown}");
                    report.done(|| place.bytes(), said);
                }
                report.take(changed);
                if files.recursive {
                    let failures = walk.enter(&visited, Some(&mut *mounts)).await;
                    failures.iter().for_each(|failure| report.failed(failure));
                }
            }
        }
        report.end()
    })
}
