//! Compounds that use an open's stateid: reads, and changes of an open file.

use super::client::V4;
use super::requests::putfh;
use crate::error::Result;
use crate::protocol::OpenContext;
use crate::transport::ReadTarget;
use crate::v4::session::answer::Answer;
use crate::v4::state::open_state::{OpenState, is_state_lost, open_state};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use weir_nfs::v4::op;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Bitmap, Error as Nfs4Error, Op, OpRes};
use weir_vfs::Layout;

impl V4 {
    /// Sends a compound that changes data or does I/O under an open's state; reopens the file if
    /// the server has lost that state.
    pub(super) async fn call_open(
        &self,
        open: &OpenContext,
        operation: &'static str,
        ops: impl Fn(StateId) -> Vec<Op>,
    ) -> Result<Vec<OpRes>> {
        let answer = self.exchange_open(open, operation, ops, None).await?;
        self.checked(operation, answer.status)?;
        Ok(answer.results)
    }

    pub(super) async fn exchange_open(
        &self,
        open: &OpenContext,
        operation: &'static str,
        ops: impl Fn(StateId) -> Vec<Op>,
        target: Option<&ReadTarget>,
    ) -> Result<Answer> {
        self.exchange_opens([open], operation, |[stateid]| ops(stateid), target).await
    }

    /// The same under the states of several opens, with the credential of the last.
    pub(super) async fn exchange_opens<const N: usize>(
        &self,
        opens: [&OpenContext; N],
        operation: &'static str,
        ops: impl Fn([StateId; N]) -> Vec<Op>,
        target: Option<&ReadTarget>,
    ) -> Result<Answer> {
        let states = opens.map(open_state);
        let cred = opens.last().map_or(&self.own, |open| &open.cred);
        let mut reopened = 0;
        loop {
            let stateids = opens.map(|open| self.stateid_of(open));
            if states.iter().flatten().any(|state| state.known.lock().locks.are_lost()) {
                return Err(weir_vfs::Error::Io.into());
            }
            let answer = self.exchange(cred, operation, &ops(stateids), target).await?;
            match answer.status {
                Err(error)
                    if is_state_lost(error)
                        && reopened < MAX_REOPENS
                        && states.iter().any(Option::is_some) =>
                {
                    tracing::info!("{}: {operation}: {error}; reopening the file", self.server);
                    if error == Nfs4Error::StaleStateId && !self.has_sessions() {
                        // The server restarted, and all state can be reclaimed.
                        self.renew().await?;
                    }
                    if reopened >= QUICK_REOPENS {
                        tokio::time::sleep(PAUSE).await;
                    }
                    self.reopen_lost(&states, &stateids).await?;
                    reopened += 1;
                }
                _ => return Ok(answer),
            }
        }
    }

    /// Reopens those files whose state the server has lost; `sent` are the stateids of which it
    /// rejected one.
    async fn reopen_lost(&self, states: &[Option<&OpenState>], sent: &[StateId]) -> Result<()> {
        let opens: Vec<_> =
            states.iter().zip(sent).filter_map(|(s, id)| Some(((*s)?, *id))).collect();
        // If one was reopened since, its old stateid may be the rejected one.
        if opens.iter().any(|(state, sent)| state.stateid(self.has_sessions()) != *sent) {
            return Ok(());
        }
        let mut lost = vec![true; opens.len()];
        if opens.len() > 1 {
            // Reopening a file loses its locks, so only if necessary.
            let ids: Vec<StateId> = opens.iter().map(|(_, sent)| *sent).collect();
            let results =
                self.call(&self.own, "TEST_STATEID", &[Op::TestStateid(ids.into())]).await?;
            if let [OpRes::TestStateid(Ok(tested))] = &results[..] {
                let bad: Vec<bool> = tested.iter().map(|status| status.is_err()).collect();
                if bad.len() == lost.len() && bad.contains(&true) {
                    lost = bad;
                }
            }
        }
        for ((state, sent), _) in opens.into_iter().zip(lost).filter(|(_, lost)| *lost) {
            self.reopen(state, sent).await?;
        }
        Ok(())
    }

    pub(super) fn stateid_of(&self, open: &OpenContext) -> StateId {
        open_state(open).map_or(StateId::ANONYMOUS, |s| s.stateid(self.has_sessions()))
    }

    pub(super) async fn read_plus(
        &self,
        open: &OpenContext,
        target: &ReadTarget,
    ) -> Result<Option<Layout>> {
        let ops = |stateid| vec![putfh(&open.handle), Op::ReadPlus(read_args(stateid, target))];
        let answer = self.exchange_open(open, "READ_PLUS", ops, Some(target)).await?;
        let why = match (answer.read, answer.status) {
            (Some(Ok(layout)), _) if layout.extents.is_empty() && layout.eof => {
                // Servers have been seen to report this for any offset (nfs-ganesha 4.3), so READ
                // decides where a file ends.
                let read = self.read_plain(open, target).await?;
                if read.extents.is_empty() {
                    return Ok(Some(read));
                }
                "end of file reported before the end".to_owned()
            }
            (Some(Ok(layout)), _) => return Ok(Some(layout)),
            (Some(Err(violation)), _) => violation.to_string(),
            (None, Err(error @ (Nfs4Error::NotSupp | Nfs4Error::OpIllegal))) => error.to_string(),
            // From servers that cannot find the file's holes for READ_PLUS.
            (None, Err(error @ Nfs4Error::UnionNotSupp)) => error.to_string(),
            (None, status) => {
                self.checked("READ_PLUS", status)?;
                return Err(self.unexpected("READ_PLUS"));
            }
        };
        // Of many calls in flight, only the first logs it.
        if self.readplus.swap(false, Relaxed) {
            tracing::warn!("{}: READ_PLUS: {why}; reading with READ from now on", self.server);
        }
        Ok(None)
    }

    pub(super) async fn read_plain(
        &self,
        open: &OpenContext,
        target: &ReadTarget,
    ) -> Result<Layout> {
        let ops = |stateid| vec![putfh(&open.handle), Op::Read(read_args(stateid, target))];
        let answer = self.exchange_open(open, "READ", ops, Some(target)).await?;
        match answer.read {
            Some(Ok(layout)) => Ok(layout),
            Some(Err(violation)) => Err(crate::protocol::broken(&self.server, "READ", violation)),
            None => {
                self.checked("READ", answer.status)?;
                Err(self.unexpected("READ"))
            }
        }
    }
}

impl V4 {
    /// Advises the server that the data will not be used again (RFC 7862 section 15.5). A server
    /// that ignores the advice serves the same data.
    pub(super) async fn advise_noreuse(&self, open: &OpenContext) {
        let hints = Bitmap::of(&[op::io_advise::Hint::NoReuse as u32]);
        let ops = |stateid| {
            let advice = op::io_advise::Args { stateid, offset: 0, count: 0, hints };
            vec![putfh(&open.handle), Op::IoAdvise(advice)]
        };
        let heeded = self.exchange_open(open, "IO_ADVISE", ops, None).await;
        let heeded = match heeded.as_ref().map(|answer| answer.results.as_slice()) {
            Ok([_, OpRes::IoAdvise(Ok(heeded)), ..]) => {
                heeded.contains(op::io_advise::Hint::NoReuse as u32)
            }
            _ => false,
        };
        if !heeded && self.noreuse.swap(false, Relaxed) {
            tracing::info!(
                "{}: ignores IO_ADVISE; uncached data may be cached at the server",
                self.server
            );
        }
    }
}

/// How often a call may find its open lost: as often as a server may restart meanwhile.
const MAX_REOPENS: u32 = 64;
/// Number of immediate retries, and the pause before each later one.
const QUICK_REOPENS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);

fn read_args(stateid: StateId, target: &ReadTarget) -> op::read::Args {
    op::read::Args { stateid, offset: target.offset, count: target.len as u32 }
}
