//! NFSv3 and MOUNT on the wire. TAKEN: branch `v3` builds this folder, crates/nfs/src/mount.rs and
//! crates/server/src/v3/ (server side of v3 and MOUNT); the wire branch goes on with v4, fuzzing and NLM.
