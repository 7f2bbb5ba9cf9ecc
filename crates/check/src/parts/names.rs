//! Filehandles and names (RFC 8881 sections 18.4, 18.9, 18.13, 18.14, 18.19, 18.25 to 18.29).

use crate::examiner::Examiner;
use crate::raw_open::{granted, refused};
use crate::rule::{Rule, rule};
use crate::scene::{Scene, each_fails, fails};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::op::create::{self, Kind};
use weir_nfs::v4::op::{readdir, rename};
use weir_nfs::v4::types::FileHandle;
use weir_nfs::v4::{Attrs, Bitmap, Error, Op, OpRes};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "operations on the current filehandle need one",
        "RFC 8881 16.2.3.1.1",
        "GETFH, GETATTR, LOOKUP and SAVEFH first: NOFILEHANDLE",
        no_filehandle
    ),
    rule!(
        "PUTFH of an unknown filehandle is refused",
        "RFC 8881 18.19.3",
        "random bytes: BADHANDLE; STALE is a note",
        bad_handle
    ),
    rule!(
        "LINK and RENAME need a saved filehandle",
        "RFC 8881 18.9.3",
        "without SAVEFH: NOFILEHANDLE",
        no_saved_filehandle
    ),
    rule!("LOOKUP of a missing name is refused", "RFC 8881 18.13.3", "NOENT", lookup_none),
    rule!("LOOKUP of an empty name is refused", "RFC 8881 18.13.3", "0 bytes: INVAL", lookup_empty),
    rule!(
        "LOOKUP of a name that is too long is refused",
        "RFC 8881 15.1.7.3",
        "2,000 bytes: NAMETOOLONG",
        lookup_long
    ),
    rule!(
        "LOOKUP in a non-directory is refused",
        "RFC 8881 18.13.4",
        "a file: NOTDIR; a symbolic link: SYMLINK",
        lookup_below
    ),
    rule!(
        "LOOKUPP of a non-directory is refused",
        "RFC 8881 18.14.3",
        "a file: NOTDIR",
        lookupp_of_file
    ),
    rule!("LOOKUPP of the root is refused", "RFC 8881 18.14.3", "NOENT", lookupp_of_root),
    rule!(
        "a failed LOOKUP leaves the current filehandle",
        "RFC 8881 18.13.3",
        "the next compound; within one, nothing runs after a failure",
        stops
    ),
    rule!(
        "CREATE of an existing name is refused",
        "RFC 8881 18.4.3",
        "a directory over a file, a directory and a link: EXIST",
        create_exists
    ),
    rule!("CREATE of an empty name is refused", "RFC 8881 18.4.3", "INVAL", create_empty),
    rule!("CREATE of a regular file is refused", "RFC 8881 18.4.3", "BADTYPE", create_regular),
    rule!(
        "CREATE in a non-directory is refused",
        "RFC 8881 15.2",
        "a file: NOTDIR",
        create_below_file
    ),
    rule!(
        "LINK of a directory is refused",
        "RFC 8881 18.9.3",
        "ISDIR; PERM is a note",
        link_of_dir
    ),
    rule!("LINK to an existing name is refused", "RFC 8881 18.9.3", "EXIST", link_exists),
    rule!("LINK to an empty name is refused", "RFC 8881 18.9.3", "INVAL", link_empty),
    rule!("REMOVE of a missing name is refused", "RFC 8881 18.25.3", "NOENT", remove_none),
    rule!("REMOVE of an empty name is refused", "RFC 8881 18.25.3", "INVAL", remove_empty),
    rule!(
        "REMOVE of a directory that is not empty is refused",
        "RFC 8881 18.25.4",
        "NOTEMPTY",
        remove_full
    ),
    rule!("RENAME of a missing name is refused", "RFC 8881 18.26.3", "NOENT", rename_none),
    rule!("RENAME of or to an empty name is refused", "RFC 8881 18.26.3", "INVAL", rename_empty),
    rule!(
        "RENAME onto an object of another kind is refused",
        "RFC 8881 18.26.3",
        "a file onto a directory, a directory onto a file: EXIST",
        rename_other_kind
    ),
    rule!(
        "RENAME onto a directory that is not empty is refused",
        "RFC 8881 18.26.3",
        "EXIST or NOTEMPTY",
        rename_onto_full
    ),
    rule!(
        "RENAME of one link onto another of the same file does nothing",
        "RFC 8881 18.26.3",
        "both names stay",
        rename_same_file
    ),
    rule!(
        "READLINK of anything but a symbolic link is refused",
        "RFC 8881 18.24.3",
        "a file and a directory: WRONG_TYPE",
        readlink_other
    ),
    rule!(
        "READDIR of a non-directory is refused",
        "RFC 8881 18.23.3",
        "a file: NOTDIR",
        readdir_of_file
    ),
    rule!(
        "READDIR with a reserved cookie is refused",
        "RFC 8881 18.23.3",
        "1 and 2: BAD_COOKIE",
        readdir_reserved
    ),
    rule!(
        "READDIR whose first entry does not fit is refused",
        "RFC 8881 18.23.3",
        "16 bytes in all: TOOSMALL",
        readdir_too_small
    ),
    rule!(
        "SECINFO consumes the current filehandle",
        "RFC 8881 18.29.3",
        "GETFH after it: NOFILEHANDLE",
        secinfo_consumes
    ),
    rule!("SECINFO of a missing name is refused", "RFC 8881 15.2", "NOENT", secinfo_none),
];

async fn no_filehandle(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |_| {
        let attrs = Bitmap::of(&[1]);
        [Op::Getfh(()), Op::Getattr(attrs), Op::Lookup("x".into()), Op::Savefh(())]
            .into_iter()
            .map(|op| (vec![op], Error::NoFilehandle))
            .collect()
    })
    .await
}

async fn bad_handle(examiner: &mut Examiner) -> Result<Verdict> {
    let handle = FileHandle::copy_from(&[0x5a; 24]);
    fails(examiner, |_| vec![Op::Putfh(handle)], &[Error::BadHandle]).await
}

async fn no_saved_filehandle(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        let rename = rename::Args { from: s.file.named(), to: s.free[..].into() };
        let link = Op::Link(s.free[..].into());
        [link, Op::Rename(rename)]
            .into_iter()
            .map(|op| (vec![s.at_top(), op], Error::NoFilehandle))
            .collect()
    })
    .await
}

async fn lookup_none(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), Op::Lookup(s.free[..].into())], &[Error::NoEnt]).await
}

async fn lookup_empty(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), Op::Lookup("".into())], &[Error::Inval]).await
}

async fn lookup_long(examiner: &mut Examiner) -> Result<Verdict> {
    let name = Op::Lookup([b'x'; 2000][..].into());
    fails(examiner, |s| vec![s.at_top(), name], &[Error::NameTooLong]).await
}

async fn lookup_below(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        vec![
            (vec![s.file.at(), Op::Lookup("x".into())], Error::NotDir),
            (vec![s.link.at(), Op::Lookup("x".into())], Error::Symlink),
        ]
    })
    .await
}

async fn lookupp_of_file(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.file.at(), Op::Lookupp(())], &[Error::NotDir]).await
}

async fn lookupp_of_root(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |_| vec![Op::Putrootfh(()), Op::Lookupp(())], &[Error::NoEnt]).await
}

async fn stops(examiner: &mut Examiner) -> Result<Verdict> {
    let scene = Scene::make(examiner).await?;
    let raw = examiner.raw().await?;
    let ops = [scene.at_top(), Op::Lookup(scene.free[..].into()), Op::Remove(scene.file.named())];
    let reply = raw.call(&ops).await?;
    let verdict = refused(reply.status, &[Error::NoEnt]);
    let there = [scene.at_top(), Op::Lookup(scene.file.named())];
    let there = granted(raw.call(&there).await?.status);
    Ok(match reply.results.len() {
        2 => verdict.max(there),
        results => Verdict::Fail(format!("{results} results")),
    })
}

fn make(kind: Kind, name: &[u8]) -> Op {
    let attrs = Attrs { mode: Some(0o700), ..Attrs::default() };
    Op::Create(create::Args { kind, name: name.into(), attrs: attrs.into() })
}

async fn create_exists(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        [&s.file, &s.dir, &s.link]
            .into_iter()
            .map(|old| (vec![s.at_top(), make(Kind::Directory, &old.name)], Error::Exist))
            .collect()
    })
    .await
}

async fn create_empty(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), make(Kind::Directory, b"")], &[Error::Inval]).await
}

async fn create_regular(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), make(Kind::Regular, &s.free)], &[Error::BadType]).await
}

async fn create_below_file(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.file.at(), make(Kind::Directory, b"x")], &[Error::NotDir]).await
}

/// A LINK of an object in the directory of the examination.
fn link(s: &Scene, from: Op, to: &[u8]) -> Vec<Op> {
    vec![from, Op::Savefh(()), s.at_top(), Op::Link(to.into())]
}

async fn link_of_dir(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| link(s, s.dir.at(), &s.free), &[Error::IsDir]).await
}

async fn link_exists(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| link(s, s.file.at(), &s.link.name), &[Error::Exist]).await
}

async fn link_empty(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| link(s, s.file.at(), b""), &[Error::Inval]).await
}

async fn remove_none(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), Op::Remove(s.free[..].into())], &[Error::NoEnt]).await
}

async fn remove_empty(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), Op::Remove("".into())], &[Error::Inval]).await
}

/// Sends a compound on a scene whose directory is not empty. It must fail with one of these errors.
/// Empties the directory afterwards.
async fn with_full_dir(
    examiner: &mut Examiner,
    ops: impl FnOnce(&Scene) -> Vec<Op>,
    expected: &[Error],
) -> Result<Verdict> {
    let scene = Scene::make(examiner).await?;
    let raw = examiner.raw().await?;
    let made = raw.call(&[scene.dir.at(), make(Kind::Directory, b"x")]).await?.status;
    let verdict = refused(raw.call(&ops(&scene)).await?.status, expected);
    let removed = raw.call(&[scene.dir.at(), Op::Remove("x".into())]).await?.status;
    Ok(granted(made).max(verdict).max(granted(removed)))
}

async fn remove_full(examiner: &mut Examiner) -> Result<Verdict> {
    let ops = |s: &Scene| vec![s.at_top(), Op::Remove(s.dir.named())];
    with_full_dir(examiner, ops, &[Error::NotEmpty]).await
}

/// A RENAME within the directory of the examination.
fn move_to(s: &Scene, from: &[u8], to: &[u8]) -> Vec<Op> {
    let rename = rename::Args { from: from.into(), to: to.into() };
    vec![s.at_top(), Op::Savefh(()), Op::Rename(rename)]
}

async fn rename_none(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| move_to(s, &s.free, &s.file.name), &[Error::NoEnt]).await
}

async fn rename_empty(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        let of = (move_to(s, b"", &s.free), Error::Inval);
        vec![of, (move_to(s, &s.file.name, b""), Error::Inval)]
    })
    .await
}

async fn rename_other_kind(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        vec![
            (move_to(s, &s.file.name, &s.dir.name), Error::Exist),
            (move_to(s, &s.dir.name, &s.file.name), Error::Exist),
        ]
    })
    .await
}

async fn rename_onto_full(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, other) = examiner.make_dir("other").await?;
    let ops = |s: &Scene| move_to(s, &other, &s.dir.name);
    with_full_dir(examiner, ops, &[Error::Exist, Error::NotEmpty]).await
}

async fn rename_same_file(examiner: &mut Examiner) -> Result<Verdict> {
    let scene = Scene::make(examiner).await?;
    let raw = examiner.raw().await?;
    let made = raw.call(&link(&scene, scene.file.at(), &scene.free)).await?.status;
    let moved = raw.call(&move_to(&scene, &scene.file.name, &scene.free)).await?.status;
    let mut verdict = granted(made).max(granted(moved));
    for name in [&scene.file.name, &scene.free] {
        let there = raw.call(&[scene.at_top(), Op::Lookup(name[..].into())]).await?.status;
        verdict = verdict.max(granted(there));
    }
    Ok(verdict)
}

async fn readlink_other(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        [&s.file, &s.dir]
            .into_iter()
            .map(|other| (vec![other.at(), Op::Readlink(())], Error::WrongType))
            .collect()
    })
    .await
}

fn read_dir(cookie: u64, max_count: u32) -> Op {
    let (verifier, attrs) = ([0; 8], Bitmap::of(&[1]));
    Op::Readdir(readdir::Args { cookie, verifier, dir_count: 4096, max_count, attrs })
}

async fn readdir_of_file(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.file.at(), read_dir(0, 4096)], &[Error::NotDir]).await
}

async fn readdir_reserved(examiner: &mut Examiner) -> Result<Verdict> {
    each_fails(examiner, |s| {
        [1, 2]
            .into_iter()
            .map(|c| (vec![s.at_top(), read_dir(c, 4096)], Error::BadCookie))
            .collect()
    })
    .await
}

async fn readdir_too_small(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), read_dir(0, 16)], &[Error::TooSmall]).await
}

async fn secinfo_consumes(examiner: &mut Examiner) -> Result<Verdict> {
    let scene = Scene::make(examiner).await?;
    let ops = [scene.at_top(), Op::Secinfo(scene.file.named()), Op::Getfh(())];
    let reply = examiner.raw().await?.call(&ops).await?;
    let listed = matches!(reply.results.get(1), Some(OpRes::Secinfo(Ok(_))));
    let verdict = refused(reply.status, &[Error::NoFilehandle]);
    Ok(if listed { verdict } else { Verdict::Fail(format!("SECINFO: {:?}", reply.status)) })
}

async fn secinfo_none(examiner: &mut Examiner) -> Result<Verdict> {
    fails(examiner, |s| vec![s.at_top(), Op::Secinfo(s.free[..].into())], &[Error::NoEnt]).await
}
