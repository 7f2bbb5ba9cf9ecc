//! The calls of [`crate::raw`]: without recovery, or under any stateid.

use super::client::V4;
use super::requests::{putfh, take};
use super::state::open_state::open_state;
use crate::error::Result;
use crate::protocol::OpenContext;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use weir_nfs::v4::op::read_plus::ReadPlus;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Op, OpRes, op};

impl V4 {
    /// Whether this minor version has READ_PLUS.
    pub(crate) fn has_read_plus(&self) -> bool {
        self.minor >= 2
    }

    /// One READ_PLUS, as the server answers it.
    pub(crate) async fn raw_read_plus(
        &self,
        open: &OpenContext,
        offset: u64,
        count: u32,
    ) -> Result<ReadPlus> {
        let ops = |stateid| {
            let args = op::read::Args { stateid, offset, count };
            vec![putfh(&open.handle), Op::ReadPlus(args)]
        };
        take!(self, self.call_open(open, "READ_PLUS", ops).await?, ReadPlus)
    }

    /// The stateid of an open file.
    pub(crate) fn raw_stateid(&self, open: &OpenContext) -> Option<StateId> {
        open_state(open).map(|state| state.stateid(false))
    }

    /// One READ_PLUS of one byte, with any stateid.
    pub(crate) async fn raw_read_under(&self, open: &OpenContext, stateid: StateId) -> Result<()> {
        let args = op::read::Args { stateid, offset: 0, count: 1 };
        let ops = [putfh(&open.handle), Op::ReadPlus(args)];
        self.call(&open.cred, "READ_PLUS", &ops).await.map(drop)
    }

    /// Suspends or resumes lease renewal; returns the duration of the lease.
    pub(crate) fn fall_silent(&self, silent: bool) -> Option<Duration> {
        self.silent.store(silent, Relaxed);
        self.lease()
    }
}
