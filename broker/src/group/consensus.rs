//! The openraft instance of one broker.

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver as _;

use crate::replication::types::TypeConfig;
use crate::storage::StateMachine;

/// Consensus on one broker.
pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// Waits until consensus ends; returns why.
pub(crate) async fn until_stopped(raft: &Raft) -> String {
    let mut metrics = raft.metrics();
    loop {
        let ended = {
            let metrics = metrics.borrow_watched();
            match &metrics.running_state {
                Err(error) => Some(error.to_string()),
                Ok(()) if metrics.state == ServerState::Shutdown => Some("it was shut down".to_owned()),
                Ok(()) => None,
            }
        };
        if let Some(reason) = ended {
            return reason;
        }
        if metrics.changed().await.is_err() {
            return "it ended".to_owned();
        }
    }
}
