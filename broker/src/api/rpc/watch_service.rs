//! WatchService: one task per watcher reads the ring at its own pace.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use comity_core::snapshot;
use comity_policy::Bundle;
use comity_proto::v1;
use comity_proto::v1::watch_service_server::WatchService;
use comity_types::RequestId;
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::api::shares::caller_slots::{CallerSlots, WATCHES};
use crate::api::viewer::Viewer;
use crate::context::{Context, complete};
use crate::group::Consistency;
use crate::watch::{Batch, cluster, objects, visible_clusters};

/// Events queued for one watcher, beyond HTTP/2's buffers.
const WATCHER_QUEUE_CAPACITY: usize = 256;
/// Batches read from the ring at once.
const BATCHES: usize = 64;
/// A watcher that reads nothing for this long is disconnected.
const WATCHER_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Streams changes.
#[derive(Debug, Clone)]
pub struct WatchHandlers {
    context: Context,
    seats: CallerSlots,
}

impl WatchHandlers {
    /// Starts without watchers.
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self { context, seats: CallerSlots::new(&WATCHES) }
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, Status>> + Send>>;

#[tonic::async_trait]
impl WatchService for WatchHandlers {
    type WatchStream = Events;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Events>, Status> {
        self.begin(request).await.map(Response::new).map_err(|error| self.context.fail(error))
    }
}

impl WatchHandlers {
    async fn begin(&self, request: Request<v1::WatchRequest>) -> Result<Events, RpcError> {
        let life = self.context.admit_stream(Rpc::Watch, &request).await?;
        complete(request.get_ref())?;
        let caller = life.caller().clone();
        let message = request.into_inner();
        let only = match message.request.as_str() {
            "" => None,
            text => Some(RequestId::parse(text, "request")?),
        };
        let seat = self.seats.take(&caller, self.context.hub.policy().as_deref())?;
        if message.from_revision > 0 {
            // Another broker may have shown a revision that this one has yet to apply.
            self.context.group.read(Consistency::Linearizable, |_| ()).await?;
            self.context.hub.after(message.from_revision, 1)?;
        }
        let (sender, receiver) = mpsc::channel(WATCHER_QUEUE_CAPACITY);
        let watcher =
            Watcher { context: self.context.clone(), caller, only, sender, viewer: Viewer::default(), bundle: None };
        let stop = self.context.stop.clone();
        let context = self.context.clone();
        let counted = self.context.metrics.watcher();
        tokio::spawn(async move {
            let _held = (seat, counted);
            let sender = watcher.sender.clone();
            let ended = tokio::select! {
                ended = watcher.run(message.from_revision) => ended,
                () = sender.closed() => return,
                () = stop.cancelled() => Some(RpcError::Stopping),
                ended = context.caller_ended(&life) => Some(ended),
            };
            if let Some(error) = ended {
                // The queue may be full, which is why it ends; then the end of the stream has to say it.
                let _ = tokio::time::timeout(WATCHER_STALL_TIMEOUT, sender.send(Err(error.into()))).await;
            }
        });
        Ok(Box::pin(ReceiverStream::new(receiver)))
    }
}

struct Watcher {
    context: Context,
    caller: Caller,
    only: Option<RequestId>,
    sender: mpsc::Sender<Result<v1::WatchEvent, Status>>,
    viewer: Viewer,
    bundle: Option<Arc<Bundle>>,
}

impl Watcher {
    /// Runs the stream; returns the error to send, or `None` if the watcher is gone.
    async fn run(mut self, from: u64) -> Option<RpcError> {
        let mut newest = self.context.hub.newest();
        let begun = if from == 0 { self.begin_with_snapshot().await } else { self.begin_after(from).await };
        let mut last = match begun {
            Ok(Some(last)) => last,
            Ok(None) => return None,
            Err(error) => return Some(error),
        };
        loop {
            let batches = match self.context.hub.after(last, BATCHES) {
                Ok(batches) => batches,
                // The revision was in the ring before, so the watcher fell behind.
                Err(_) => return Some(RpcError::WatcherTooSlow { last }),
            };
            if batches.is_empty() && newest.changed().await.is_err() {
                return Some(RpcError::Stopping);
            }
            for batch in batches {
                match self.send(&batch, last).await {
                    Ok(true) => last = batch.revision,
                    Ok(false) => return None,
                    Err(error) => return Some(error),
                }
            }
        }
    }

    /// Sends all visible objects. Renders none under the state's lock but clusters, whose sums a copy lacks, and of
    /// these one at a time.
    async fn begin_with_snapshot(&mut self) -> Result<Option<u64>, RpcError> {
        let group = self.context.group.clone();
        let state = group.read(Consistency::Linearizable, snapshot::copy).await?;
        self.bundle = state.policy.as_ref().map(|record| Arc::clone(&record.bundle));
        self.viewer = Viewer::of(&self.caller, self.bundle.as_deref());
        let revision = state.revision;
        for id in visible_clusters(&state, &self.viewer, self.only) {
            if let Some(event) = group.peek(|state| cluster(state, &id, revision))
                && !self.send_event(event, 0).await?
            {
                return Ok(None);
            }
        }
        for event in objects(&state, &self.viewer, self.only) {
            if !self.send_event(event, 0).await? {
                return Ok(None);
            }
        }
        let synced = v1::watch_event::Object::Synced(v1::watch_event::Synced {});
        let more = self.send_event(v1::WatchEvent { revision, object: Some(synced) }, 0).await?;
        Ok(more.then_some(revision))
    }

    async fn begin_after(&mut self, from: u64) -> Result<Option<u64>, RpcError> {
        self.bundle = self.context.hub.policy();
        self.viewer = Viewer::of(&self.caller, self.bundle.as_deref());
        Ok(Some(from))
    }

    /// Sends the visible events of a batch, under the bundle in force at its revision.
    async fn send(&mut self, batch: &Batch, last: u64) -> Result<bool, RpcError> {
        let same = match (&self.bundle, &batch.policy) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.bundle.clone_from(&batch.policy);
            self.viewer = Viewer::of(&self.caller, self.bundle.as_deref());
        }
        for event in &batch.events {
            if let Some(message) = event.for_watcher(&self.viewer, self.only)
                && !self.send_event(message, last).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends one event; false if the watcher is gone.
    async fn send_event(&self, message: v1::WatchEvent, last: u64) -> Result<bool, RpcError> {
        match self.sender.send_timeout(Ok(message), WATCHER_STALL_TIMEOUT).await {
            Ok(()) => Ok(true),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Ok(false),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(RpcError::WatcherTooSlow { last }),
        }
    }
}
