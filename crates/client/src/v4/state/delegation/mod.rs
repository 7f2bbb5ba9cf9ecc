//! Read delegations: while this mount holds one, no other client changes the file, so opens and
//! GETATTR are answered without asking the server (RFC 8881 section 10.4).
//!
//! ```text
//!          OPEN                 CB_RECALL, too many, doubt              DELEGRETURN
//! (none) --------> held, open <---+------------------> due, open or not -----------> (none)
//!                   |   ^         |                     ^
//!      last closed  v   | opened  |                     |
//!                  held, idle ----+---------------------+
//! ```
//!
//! 1. An idle file stays open at the server, so that the next open can use that open. It is closed
//!    when its delegation ends.
//! 2. Cached state that relies on a delegation has the number of its
//!    [`grant`](table::Delegations::grant), and is valid only while that is the same. The grant
//!    ends when a recall is read, or as soon as one may have been missed (the connection was
//!    re-established, the lease may not have been renewed, the server reports that it cannot call
//!    back or has revoked state).
//! 3. A delegation is returned without the file's turn, which may be held by a request that the
//!    server answers only afterwards.
//! 4. The mount keeps no delegation of a file that it opens for writing: the server could not tell
//!    its changes from those of local programs.
//! 5. At most `MOST` are held; the least recently used goes first.
//!
//! The mount does not ask for write delegations: dirty data is written back before close anyway. In
//! minor version 0 a client cannot ask for one, and the server would have to connect to this
//! process to recall it (through firewalls, at an open port), so servers that test the callback
//! path grant none. Unrequested delegations of either kind are returned at once.

pub(crate) mod table;

use crate::protocol::Handle;
use crate::v4::client::V4;
use crate::v4::requests::putfh;
use crate::v4::state::delegation::table::since_boot;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use weir_nfs::v4::op::bind_conn_to_session::{self, DirFromClient};
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Error as Nfs4Error, Op};

impl V4 {
    /// The number of a file's delegation, if it can be relied on.
    pub(in crate::v4) fn grant_of(&self, handle: &Handle) -> Option<u64> {
        let lease = self.lease()?;
        self.delegations.grant(handle, self.reconnects(), lease, since_boot())
    }

    /// Returns delegations that are due, as long as the mount exists.
    pub(in crate::v4) fn give_back_what_is_due(self: &Arc<Self>) {
        let (mount, delegations): (Weak<Self>, _) =
            (Arc::downgrade(self), Arc::clone(&self.delegations));
        tokio::spawn(async move {
            loop {
                delegations.due.notified().await;
                let Some(v4) = mount.upgrade() else { return };
                if delegations.table.lock().unbound {
                    v4.bind_back().await;
                }
                while let Some((handle, stateid)) = delegations.take_due() {
                    v4.give_back(&handle, stateid).await;
                    let v4 = Arc::clone(&v4);
                    tokio::spawn(async move { v4.close_idle(&handle).await });
                }
            }
        });
    }

    /// Returns the delegation of a file that is about to lose a name.
    pub(in crate::v4) async fn give_back_file(&self, handle: &Handle) {
        if self.give_back_held(handle).await {
            self.close_idle(handle).await;
        }
    }

    /// Returns a file's delegation, if there is one; the open that it kept stays open.
    pub(in crate::v4) async fn give_back_held(&self, handle: &Handle) -> bool {
        let held = self.delegations.table.lock().held.remove(handle);
        let Some(held) = held else { return false };
        self.give_back(handle, held.stateid).await;
        true
    }

    /// Returns all delegations, for the end of the mount.
    pub(in crate::v4) async fn give_back_all(&self) {
        let held: HashSet<_> = {
            let mut table = self.delegations.table.lock();
            table.ended = true;
            table.held.drain().map(|(handle, held)| (handle, held.stateid)).collect()
        };
        for (handle, stateid) in held {
            self.give_back(&handle, stateid).await;
        }
    }

    async fn give_back(&self, handle: &Handle, stateid: StateId) {
        let ops = [putfh(handle), Op::Delegreturn(stateid)];
        match self.exchange(&self.own, "DELEGRETURN", &ops, None).await {
            // It was revoked; the server expects an acknowledgement (section 10.2.1).
            Ok(answer)
                if matches!(
                    answer.status,
                    Err(Nfs4Error::DelegRevoked | Nfs4Error::AdminRevoked | Nfs4Error::Expired)
                ) =>
            {
                let ops = [Op::FreeStateid(stateid)];
                if let Err(error) = self.call(&self.own, "FREE_STATEID", &ops).await {
                    tracing::debug!("{error}");
                }
            }
            Ok(answer) => {
                if let Err(error) = self.checked("DELEGRETURN", answer.status) {
                    tracing::debug!("{error}");
                }
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }

    /// Makes the server call back over connections established after the session.
    async fn bind_back(&self) {
        self.delegations.table.lock().unbound = false;
        let session = self.session().id;
        let args =
            bind_conn_to_session::Args { session, dir: DirFromClient::ForeOrBoth, use_rdma: false };
        if let Err(error) =
            self.call_alone("BIND_CONN_TO_SESSION", Op::BindConnToSession(args)).await
        {
            tracing::debug!("{error}");
        }
    }
}
