//! `weir mv`: renames files, and moves them between file systems and servers.

use super::cp::plan::{Ends, Target, pair};
use super::cp::signals::{Ending, say_what_is_left};
use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::cli::too_few;
use crate::ended::Ended;
use crate::output::{complain, confirm, say, umask};

use rustix::fs::CWD;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use weir_client::NfsUrl;
use weir_stores::local::rename_no_replace;
use weir_tools::copy::{Copier, Options, Overwrite, Progress, source};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::known::Known;
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts, Place};
use weir_tools::remove::{Event, remove_known};
use weir_tools::rename::{may_be_one, rename};
use weir_vfs::{Attr, Caller, Error, FileKind, RenameFlags};

/// Rename or move files and directories
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir mv nfs://filer/images/new.img nfs://filer/images/disk.img
  weir mv a.img b.img nfs://filer/old/            several, into a directory
  weir mv -n a b                                  never replaces an existing file
  weir mv disk.img nfs://filer/images/            to another file system

Within a file system or server, a move is one rename. Otherwise weir copies, as `weir cp -a` \
does, and removes the source when all of the copy is complete and durable. What the \
destination cannot keep is reported. A source that cannot be copied whole stays.")]
pub(crate) struct Args {
    /// The sources, then the destination: a directory, or the new name
    #[arg(value_name = "LOCATION", required = true, num_args = 1.., value_parser = location())]
    locations: Vec<Location>,
    /// The directory to move into; all locations are sources then
    #[arg(short, long, value_name = "LOCATION", value_parser = location(),
          conflicts_with = "no_target_directory")]
    target_directory: Option<Location>,
    /// The destination is the new name, also if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Do not replace an existing file
    #[arg(short, long, overrides_with_all = ["interactive", "force"])]
    no_clobber: bool,
    /// Replace files that exist only if the source was changed later
    #[arg(short, long)]
    update: bool,
    /// Ask before a file is replaced
    #[arg(short, long, overrides_with_all = ["no_clobber", "force"])]
    interactive: bool,
    /// Ask nothing, which is the default
    #[arg(short, long, overrides_with_all = ["no_clobber", "interactive"])]
    force: bool,
    /// Print a line for each source
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

/// Whether a file was moved.
enum Moved {
    /// It has the new name, and this inode number.
    To(NewName, u64),
    /// The existing file stays, as asked for.
    Not,
    /// A rename cannot move it.
    Elsewhere,
    /// A signal asked to stop.
    Interrupted,
}

/// The path or URL of a file that was moved.
struct NewName {
    shown: String,
    bytes: Vec<u8>,
}

impl NewName {
    fn of(place: &Place) -> Self {
        Self { shown: place.shown.clone(), bytes: place.bytes() }
    }
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let directory = args.target_directory.as_ref();
    let Some(ends) = Ends::new(&args.locations, directory, args.no_target_directory) else {
        too_few("mv", "a source and a destination: 2 values required")
    };
    with_mounts(&args.mount, async |mounts| {
        let mut report = Report::new(&args.json, args.verbose);
        if ends.target == Target::Directory || ends.sources.len() > 1 {
            let to = mounts.place(ends.to, Links::Follow).await?;
            if to.attr.as_ref().is_none_or(|attr| attr.kind != FileKind::Directory) {
                let asked = format!("move to {}", ends.to);
                let failure = Failure::new(asked, "there is no such directory");
                return Err(failure.advice("make it first"));
            }
        }
        let mut moved = HashMap::new();
        let ending = OnceCell::<Arc<Ending>>::new();
        let is_asked = || ending.get().is_some_and(|ending| ending.is_asked());
        for from in ends.sources {
            let one = One { from, ends: &ends, args: &args, moved: &moved, ending: &ending };
            if is_asked() {
                report.failed(&Failure::new(one.asked(), "interrupted"));
                break;
            }
            match one.go(mounts, &mut report).await {
                Ok(Moved::To(to, ino)) => {
                    moved.insert(ino, from.to_string());
                    report.done(|| to.bytes, || format!("{from} -> {}", to.shown));
                }
                Ok(Moved::Not | Moved::Elsewhere) => {}
                Ok(Moved::Interrupted) => {
                    report.failed(&Failure::new(one.asked(), "interrupted"));
                    break;
                }
                Err(failure) => report.failed(&failure),
            }
        }
        let ended = report.end()?;
        Ok(if is_asked() { Ended::Interrupted } else { ended })
    })
}

/// One source to move.
struct One<'a> {
    from: &'a Location,
    ends: &'a Ends<'a>,
    args: &'a Args,
    /// The sources that were moved before, by their inode numbers. All are in one directory now.
    moved: &'a HashMap<u64, String>,
    /// Set before the first copy; without one, a signal ends the program at once.
    ending: &'a OnceCell<Arc<Ending>>,
}

impl One<'_> {
    fn asked(&self) -> String {
        format!("move {} to {}", self.from, self.ends.to)
    }

    async fn go(&self, mounts: &mut Mounts, report: &mut Report) -> Result<Moved> {
        let moved = match (self.from, self.ends.to) {
            (Location::Local(from), Location::Local(to)) => self.local(from, to)?,
            (Location::Nfs(from), Location::Nfs(to)) if from.host == to.host => {
                self.remote(mounts, from, to).await?
            }
            _ => Moved::Elsewhere,
        };
        match moved {
            Moved::Elsewhere => self.copy_and_remove(mounts, report).await,
            moved => Ok(moved),
        }
    }

    /// The source. A link stands for itself, also with a slash behind it: as for rename(2), that is no name for the
    /// directory that it leads to.
    fn name(&self) -> Location {
        self.from.without_slash()
    }

    /// Fails if a slash is behind a name, old or new, and the source is no directory: as for rename(2), that is no
    /// name for a file.
    fn refuse_slash(&self, location: &Location, source: &Attr) -> Result<()> {
        match location.ends_in_slash() && source.kind != FileKind::Directory {
            true => Err(Error::NotDirectory).asked(|| self.asked()),
            false => Ok(()),
        }
    }

    /// Fails if the file `ino`, which a move would replace, is another source.
    fn may_replace(&self, ino: u64) -> Result<()> {
        match self.moved.get(&ino) {
            Some(other) if !self.args.no_clobber => {
                let failure = Failure::new(self.asked(), format!("it would replace {other}"));
                Err(failure.advice("rename one of them, or move them to different directories"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a file that exists under the new name stays.
    fn stays(&self, source: SystemTime, there: SystemTime, shown: &str) -> bool {
        let is_newer = self.args.update && there >= source;
        is_newer || self.args.interactive && !confirm(&format!("replace {shown}?"))
    }

    /// Fails if the source is a symbolic link to the file that the move would replace: the data would be lost.
    async fn refuse_target(&self, mounts: &mut Mounts, link: &Attr, to: &Place) -> Result<()> {
        let replaces = link.kind == FileKind::Symlink && !self.args.no_clobber;
        match replaces && mounts.is_target(&self.name(), to).await {
            true => Err(Failure::new(self.asked(), "both are the same file")),
            false => Ok(()),
        }
    }

    fn flags(&self) -> RenameFlags {
        if self.args.no_clobber { RenameFlags::NoReplace } else { RenameFlags::Replace }
    }

    /// The kernel renames local files.
    fn local(&self, from: &Path, to: &Path) -> Result<Moved> {
        let to: PathBuf = match from.file_name() {
            Some(name) if self.ends.target != Target::Name && to.is_dir() => to.join(name),
            _ => to.to_path_buf(),
        };
        let source = fs::symlink_metadata(from).asked(|| self.asked())?;
        let new = Location::Local(to.clone());
        let (shown, bytes) = (new.to_string(), new.bytes());
        let there = fs::symlink_metadata(&to);
        let is_same = |there: &fs::Metadata| {
            (source.dev(), source.ino()) == (there.dev(), there.ino()) && source.nlink() > 1
        };
        let is_link = !source.is_dir() && there.as_ref().is_ok_and(is_same);
        if let Ok(there) = &there
            && let (Ok(source), Ok(there)) = (source.modified(), there.modified())
            && self.stays(source, there, &shown)
        {
            return Ok(Moved::Not);
        }
        if let Ok(there) = &there {
            self.may_replace(there.ino())?;
        }
        if let Ok(there) = &there
            && source.is_symlink()
            && !self.args.no_clobber
            && leads_to(from, &to, there)
        {
            return Err(Failure::new(self.asked(), "both are the same file"));
        }
        if is_link && !self.args.no_clobber {
            // rename(2) does nothing for two names of one file.
            if entry_of(from).asked(|| self.asked())? == entry_of(&to).asked(|| self.asked())? {
                return Err(Failure::new(self.asked(), "both are the same file"));
            }
            if are_two_entries(from, &to).asked(|| self.asked())? {
                fs::remove_file(from).asked(|| self.asked())?;
                return Ok(Moved::To(NewName { shown, bytes }, source.ino()));
            }
        }
        let renamed = match self.args.no_clobber {
            true => rename_no_replace((CWD, from), (CWD, to.as_path())),
            false => rustix::fs::rename(from, &to),
        };
        match renamed {
            Err(rustix::io::Errno::XDEV) => Ok(Moved::Elsewhere),
            renamed => {
                renamed.map_err(std::io::Error::from).asked(|| self.asked())?;
                Ok(Moved::To(NewName { shown, bytes }, source.ino()))
            }
        }
    }

    async fn remote(&self, mounts: &mut Mounts, from: &NfsUrl, to: &NfsUrl) -> Result<Moved> {
        let asked = || self.asked();
        // One mount has to reach both ends: that of the directory above both.
        let shared = from.path.iter().zip(&to.path).take_while(|(a, b)| a == b).count();
        let shared = shared.min(from.path.len().saturating_sub(1)).min(to.path.len());
        let path = from.path[..shared].to_vec();
        let root = NfsUrl { path, ends_in_slash: false, ..from.clone() };
        mounts.place(&Location::Nfs(root), Links::Follow).await?;
        let source = mounts.place(&self.name(), Links::Stay).await?;
        let attr = source.existing("move")?;
        self.refuse_slash(self.from, attr)?;
        let target = self.target(mounts, &source).await?;
        if !Arc::ptr_eq(source.fs.store(), target.fs.store()) {
            return Ok(Moved::Elsewhere);
        }
        if let Some(there) = &target.attr
            && self.stays(attr.mtime, there.mtime, &target.shown)
        {
            return Ok(Moved::Not);
        }
        if let Some(there) = &target.attr {
            self.may_replace(there.id.ino)?;
        }
        if source.name.is_none() || target.name.is_none() {
            return Err(Failure::new(asked(), "a root cannot be moved"));
        }
        self.refuse_target(mounts, attr, &target).await?;
        let has_names = attr.kind != FileKind::Directory && attr.nlink > 1;
        let is_same = (source.dir, &source.name) == (target.dir, &target.name);
        if is_same && has_names && !self.args.no_clobber {
            return Err(Failure::new(asked(), "both are the same file"));
        }
        match rename(&source, &target, self.flags()).await {
            Err(Error::CrossDevice) => Ok(Moved::Elsewhere),
            renamed => renamed.asked(asked).map(|()| Moved::To(NewName::of(&target), attr.id.ino)),
        }
    }

    /// The new name at a server, and what is there.
    async fn target(&self, mounts: &mut Mounts, source: &Place) -> Result<Place> {
        let asked = || self.asked();
        let to = self.ends.to;
        // As for rename(2), a link with a slash behind it is no name for what it leads to.
        let location = to.without_slash();
        let moved = source.existing("move")?;
        if self.ends.target == Target::Name {
            self.refuse_slash(to, moved)?;
            return mounts.place(&location, Links::Stay).await;
        }
        match self.into(mounts).await? {
            Some(into) => {
                let name = source.name.as_deref().ok_or(Error::Invalid).asked(asked)?;
                let mut place = into.child(into.existing("find")?.id, name, None);
                place.attr = match place.fs.lookup(&Caller::Own, place.dir.entry(name)).await {
                    Ok(attr) => Some(attr),
                    Err(Error::NotFound) => None,
                    Err(error) => return Err(error).asked(asked),
                };
                Ok(place)
            }
            None if to.ends_in_slash() && moved.kind != FileKind::Directory => {
                let failure = Failure::new(asked(), "there is no such directory");
                Err(failure.advice("make it first"))
            }
            None => mounts.place(&location, Links::Stay).await,
        }
    }

    /// The directory to move into, if the destination is one. A link to a directory stands for the
    /// directory, as in mv(1); any other link is replaced itself.
    async fn into(&self, mounts: &mut Mounts) -> Result<Option<Place>> {
        let location = self.ends.to;
        let led = mounts.place(location, Links::Follow).await;
        if let Err(failure) = &led
            && !failure.is_of(Error::NotFound)
            && let Ok(there) = mounts.place(&location.without_slash(), Links::Stay).await
            && there.attr.is_some()
        {
            // The link's target may be a directory.
            return Err(failure.clone());
        }
        let is_directory = |place: &Place| {
            place.attr.as_ref().is_some_and(|attr| attr.kind == FileKind::Directory)
        };
        Ok(led.ok().filter(is_directory))
    }

    /// Copies to another file system, and then removes the source.
    async fn copy_and_remove(&self, mounts: &mut Mounts, report: &mut Report) -> Result<Moved> {
        let asked = || self.asked();
        let options = Options {
            recursive: true,
            preserve: true,
            moves: true,
            umask: umask(),
            overwrite: match (self.args.no_clobber, self.args.update) {
                (true, _) => Overwrite::Keep,
                (false, true) => Overwrite::Update,
                (false, false) => Overwrite::Replace,
            },
            ..Options::default()
        };
        let directory = match self.ends.target {
            Target::Name => None,
            _ => self.into(mounts).await?,
        };
        let into = directory.as_ref().and_then(|directory| directory.attr.clone());
        let to = match directory {
            Some(directory) => directory,
            None => mounts.place(&self.ends.to.without_slash(), Links::Stay).await?,
        };
        let (from, to) =
            pair(mounts, &self.name(), self.ends.to, &to, into.as_ref(), &options).await?;
        let attr = from.existing("move")?.clone();
        self.refuse_slash(self.from, &attr)?;
        if into.is_none() {
            self.refuse_slash(self.ends.to, &attr)?;
        }
        if self.from.name().is_none() {
            return Err(Failure::new(asked(), "a root cannot be moved"));
        }
        if let Some(there) = &to.attr {
            if source::is_same(&attr, there) {
                return Err(Failure::new(asked(), "both are the same file"));
            }
            let is_directory = attr.kind == FileKind::Directory;
            if self.args.no_clobber {
                return Err(Error::Exists).asked(asked);
            }
            self.may_replace(there.id.ino)?;
            self.refuse_target(mounts, &attr, &to).await?;
            match (is_directory, there.kind == FileKind::Directory) {
                (false, false) if self.stays(attr.mtime, there.mtime, &to.shown) => {
                    return Ok(Moved::Not);
                }
                (false, false) => {}
                (false, true) => return Err(Error::IsDirectory).asked(asked),
                (true, false) => return Err(Error::NotDirectory).asked(asked),
                (true, true) if to.children(there.id).await?.is_empty() => {}
                (true, true) => return Err(Error::NotEmpty).asked(asked),
            }
        }
        let known = Known::of(from.clone(), attr).await?;
        // About a file that is there, this has asked already.
        let options = Options { asks: self.args.interactive && to.attr.is_none(), ..options };
        let copier = Arc::new(Copier::new(options, mounts.budget_bytes(), Failures));
        let ending = self.ending.get_or_init(Ending::by_signals);
        ending.begin(&copier);
        copier.copy(vec![(from, to.clone())]).await;
        for lost in copier.not_preserved() {
            say(format_args!("weir: the destination does not keep {lost}"));
        }
        if copier.is_interrupted() {
            say_what_is_left(&copier);
            return Ok(Moved::Interrupted);
        }
        let summary = copier.summary(std::time::Duration::ZERO, 0);
        if copier.failed() || summary.kept > 0 {
            let failure = Failure::new(asked(), "not all of it could be copied");
            return Err(failure.advice("the source stays as it is"));
        }
        let copy = match &to.name {
            Some(name) => to.fs.lookup(&Caller::Own, to.dir.entry(name)).await,
            // An empty directory, which has become the copy.
            None => to.fs.getattr(to.dir).await,
        };
        let copy = copy.asked(asked)?;
        tokio::select! {
            removed = self.remove_source(mounts, &known, report) => removed?,
            () = ending.asked() => {
                let (from, to) = (self.from, &to.shown);
                say(format_args!("weir: {to} is complete; not all of {from} was removed"));
                return Ok(Moved::Interrupted);
            }
        }
        Ok(Moved::To(NewName::of(&to), copy.id.ino))
    }

    /// Removes what was copied of a source. What is new or changed since then stays.
    async fn remove_source(
        &self,
        mounts: &mut Mounts,
        known: &Known,
        report: &mut Report,
    ) -> Result<()> {
        let remove_asked = || format!("remove {} after it was copied", self.from);
        let (Some(above), Some(name)) = (self.from.parent(), self.from.name()) else {
            return Err(Failure::new(remove_asked(), "it has no name"));
        };
        let above = mounts.place(&above, Links::Follow).await?;
        let id = above.existing("find")?.id;
        let attr = above.fs.lookup(&Caller::Own, id.entry(&name)).await.asked(remove_asked)?;
        let place = above.child(id, &name, Some(attr.clone()));
        let report = |event: Event<'_>| {
            if let Event::Failed(failure) = event {
                report.failed(&failure);
            }
        };
        match remove_known(place, attr, |place, attr| known.has(place, attr), report).await {
            true => Ok(()),
            false => Err(Failure::new(self.asked(), "not all of the source was removed")),
        }
    }
}

/// The directory of a name, without symbolic links, and the name.
fn entry_of(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(above(path).canonicalize()?.join(name))
}

fn above(path: &Path) -> &Path {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or(Path::new("."))
}

/// Whether a symbolic link leads to the file `there`, whose name is `to`. Another name of a file with several is left
/// if that one is replaced.
fn leads_to(link: &Path, to: &Path, there: &fs::Metadata) -> bool {
    let Ok(led) = link.metadata() else { return false };
    let is_same = (led.dev(), led.ino()) == (there.dev(), there.ino());
    let is_name = || match (link.canonicalize(), entry_of(to)) {
        (Ok(led), Ok(to)) => led == to,
        _ => true,
    };
    is_same && !there.is_dir() && (there.nlink() == 1 || is_name())
}

/// Whether two names of a file are two entries: in one directory, they may be one that the file system takes
/// for both (it folds case, say).
fn are_two_entries(a: &Path, b: &Path) -> io::Result<bool> {
    let directory = |path: &Path| above(path).metadata().map(|found| (found.dev(), found.ino()));
    let mut sought = vec![a.file_name(), b.file_name()];
    let may_be_one = match (a.file_name(), b.file_name()) {
        (Some(a), Some(b)) => may_be_one(a.as_bytes(), b.as_bytes()),
        _ => true,
    };
    if !may_be_one || directory(a)? != directory(b)? {
        return Ok(true);
    }
    for entry in fs::read_dir(above(a))? {
        let name = entry?.file_name();
        sought.retain(|sought| *sought != Some(&name));
    }
    Ok(sought.is_empty() && a.file_name() != b.file_name())
}

/// Says what fails.
struct Failures;

impl Progress for Failures {
    fn may_replace(&self, to: &str) -> bool {
        tokio::task::block_in_place(|| confirm(&format!("replace {to}?")))
    }

    fn failed(&self, failure: &Failure) {
        complain(failure);
    }

    fn interrupted(&self) {
        say("weir: interrupted");
    }
}
