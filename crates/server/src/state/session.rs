//! Sessions. [`slot_table`](super::slot_table) has their slots, and [`backchannel`](super::backchannel) the server's
//! calls to clients.

use crate::admission::LimitUse;
use crate::state::backchannel::{Backchannel, CallbackCred};
use crate::state::channel::Channel;
use crate::state::client::ClientId;
use crate::state::error::StateError;
use crate::state::ids::{Ids, SessionId};
use crate::state::kept_replies::KeptReplies;
use crate::state::shared_client::SharedClient;
use crate::state::slot_table::{SlotTable, SlotTables};
use crate::state::tally::{Account, Tally};
use std::collections::HashMap;
use std::sync::Arc;
#[cfg(test)]
use std::time::Duration;

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Its ID.
    pub(crate) id: SessionId,
    /// The client that created it.
    pub(crate) client: ClientId,
    /// The channel for the server's callbacks.
    pub(crate) back: Channel,
    /// The program number of the client's callback service.
    pub(crate) callback_program: u32,
    /// The credential of callbacks; `None` if the client accepts no flavor that the server
    /// supports.
    pub(crate) callback_cred: Option<CallbackCred>,
    /// The minor version of the request that created it.
    pub(crate) minor: u32,
    /// The slots of the channel for the client's requests.
    pub(crate) slots: Arc<SlotTable>,
    pub(super) backchannel: Backchannel,
}

/// The sessions of all clients.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(super) by_id: HashMap<SessionId, Session>,
    by_client: HashMap<ClientId, OfClient>,
    /// The sessions to whose backchannel a connection is bound.
    pub(super) by_connection: HashMap<u64, Vec<SessionId>>,
    ids: Ids,
    made: u64,
    /// The sessions of each client.
    counts: Tally,
    slot_tables: Arc<SlotTables>,
    kept: Arc<KeptReplies>,
    max: usize,
}

/// The sessions of a client.
#[derive(Debug)]
struct OfClient {
    account: Account,
    ids: Vec<SessionId>,
    shared: Arc<SharedClient>,
}

impl Sessions {
    /// An empty table for at most `max` sessions, with a limit of `max_kept_bytes` on cached
    /// replies.
    pub(crate) fn new(ids: Ids, max: usize, max_kept_bytes: u64) -> Self {
        Self {
            by_id: HashMap::new(),
            by_client: HashMap::new(),
            by_connection: HashMap::new(),
            ids,
            made: 0,
            counts: Tally::default(),
            slot_tables: Arc::default(),
            kept: Arc::new(KeptReplies::new(max_kept_bytes)),
            max,
        }
    }

    /// Creates a session of the client `shared`.
    ///
    /// # Errors
    /// [`StateError::TooMany`].
    pub(super) fn create(
        &mut self,
        account: Account,
        shared: Arc<SharedClient>,
        fore: Channel,
        mut back: Channel,
        minor: u32,
    ) -> Result<&mut Session, StateError> {
        let client = account.client;
        if self.by_id.len() >= self.max {
            return Err(StateError::TooMany);
        }
        self.made += 1;
        let id = self.ids.session(self.made);
        let backchannel = Backchannel::new(&mut back);
        let new = OfClient { account, ids: Vec::new(), shared };
        let of_client = self.by_client.entry(client).or_insert(new);
        of_client.ids.push(id);
        of_client.shared.set_sessions(of_client.ids.len());
        let OfClient { account, ref shared, .. } = *of_client;
        let slots = Arc::new(SlotTable::new(fore, account, shared.clone(), self.kept.clone()));
        self.slot_tables.insert(id, slots.clone());
        self.counts.add(account, 1);
        let session = Session {
            id,
            client,
            back,
            callback_program: 0,
            callback_cred: None,
            minor,
            slots,
            backchannel,
        };
        Ok(self.by_id.entry(id).or_insert(session))
    }

    /// The numbers of sessions of clients and addresses.
    pub(super) fn counts(&self) -> &Tally {
        &self.counts
    }

    /// The session with this ID.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub(crate) fn get(&self, id: SessionId) -> Result<&Session, StateError> {
        self.by_id.get(&id).ok_or(StateError::BadSession)
    }

    /// The session with this ID, mutable.
    ///
    /// # Errors
    /// [`StateError::BadSession`].
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, StateError> {
        self.by_id.get_mut(&id).ok_or(StateError::BadSession)
    }

    /// The slots of the sessions.
    pub(crate) fn slot_tables(&self) -> &Arc<SlotTables> {
        &self.slot_tables
    }

    /// The use of the limit on cached replies, in bytes.
    pub(super) fn kept(&self) -> LimitUse {
        self.kept.in_use()
    }

    /// Removes a session in which no request is in progress, unless it is one in the slot `but`.
    ///
    /// # Errors
    /// [`StateError::BadSession`], or [`StateError::Busy`] if another slot is busy.
    pub(super) fn remove_idle(
        &mut self,
        id: SessionId,
        but: Option<u32>,
    ) -> Result<Session, StateError> {
        self.get(id)?.slots.close_idle(but)?;
        self.remove(id).ok_or(StateError::BadSession)
    }

    /// Removes a session, even if requests in it are in progress.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let session = self.by_id.remove(&id)?;
        self.slot_tables.remove(id);
        session.slots.close();
        self.counts.subtract(session.client, 1);
        if let Some(of_client) = self.by_client.get_mut(&session.client) {
            of_client.ids.retain(|other| *other != id);
            of_client.shared.set_sessions(of_client.ids.len());
            if of_client.ids.is_empty() {
                self.by_client.remove(&session.client);
            }
        }
        self.unbind_all(&session);
        Some(session)
    }

    /// Removes all sessions of a client.
    pub(crate) fn remove_of(&mut self, client: ClientId) {
        let ids: Vec<SessionId> = self.of(client).map(|s| s.id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// The sessions of a client.
    pub(crate) fn of(&self, client: ClientId) -> impl Iterator<Item = &Session> {
        let ids = self.by_client.get(&client).map_or(&[][..], |of_client| &of_client.ids);
        ids.iter().filter_map(|id| self.by_id.get(id))
    }
}

#[cfg(test)]
impl Sessions {
    /// Creates a session of a client that is counted alone.
    pub(super) fn create_alone(
        &mut self,
        client: u64,
        fore: Channel,
    ) -> Result<&mut Session, StateError> {
        let client = ClientId(client);
        let shared = match self.by_client.get(&client) {
            Some(of_client) => of_client.shared.clone(),
            None => Arc::new(SharedClient::new(Duration::ZERO)),
        };
        self.create(Account::alone(client), shared, fore, fore, 1)
    }
}
