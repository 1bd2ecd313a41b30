//! The tasks of a running agent, by what they are for. Whatever writes to the cluster stands still behind the fence: of
//! several replicas only the active one acts.

use std::sync::Arc;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_model::desired::Update;
use comity_agent_model::nodes::Nodes;
use comity_agent_state::store::StoreError;
use comity_agent_workload::burst::{self, BrokerRequests, BurstContext, GateReview, RequestedStores};
use comity_agent_workload::lease_pods::LeasePodsReview;
use comity_runtime::{ClientTls, IdentityDir, IdentitySource, KnownBrokers, ReadinessGuard, Shutdown};
use tokio::sync::{Notify, watch};

use super::agent_platform::Platform;
use super::reviewers::Reviewers;
use crate::config::Config;
use crate::enrollment::member_brokers;
use crate::enrollment::renew::Renewal;
use crate::metrics::Metrics;
use crate::mig::mig_keeper::MigChannels;
use crate::reconcile::execute::Executor;
use crate::reconcile::fault::CrashPoint;
use crate::reconcile::parts::Parts;
use crate::services::measured;
use crate::services::policy_follower::PolicyFollower;
use crate::services::remapped_addresses::RemappedAddressesReview;
use crate::services::webhook_registrations::webhook_registrations;
use crate::uplink::Uplink;
use crate::usage::{self, UseContext};

/// What all tasks need.
pub(super) struct Tasks<'a> {
    pub(super) config: &'a Config,
    pub(super) parts: &'a Parts,
    pub(super) platform: &'a Platform,
    pub(super) metrics: &'a Metrics,
    pub(super) desired: &'a watch::Receiver<Update>,
    pub(super) shutdown: &'a Shutdown,
}

/// Access to the brokers, with the identity that it needs.
pub(super) struct BrokerAccess {
    pub(super) directory: IdentityDir,
    pub(super) source: IdentitySource,
    pub(super) brokers: KnownBrokers,
    pub(super) tls: ClientTls,
}

/// Between the uplink and the tasks that carry out what it receives.
pub(super) struct UplinkEnds {
    pub(super) desired: watch::Sender<Update>,
    pub(super) outage_grace_ms: watch::Sender<u64>,
    /// Asks for a fresh desired state.
    pub(super) resync: Arc<Notify>,
    /// Not ready until it is connected.
    pub(super) readiness: ReadinessGuard,
}

impl Tasks<'_> {
    /// Carries out the leases: their steps, the MIG devices that they need, and what differs from them.
    pub(super) fn carry_out_leases(
        &self,
        mig: Option<MigChannels>,
        crash_points: Vec<CrashPoint>,
        ends: &UplinkEnds,
    ) -> Result<(), StoreError> {
        let Self { config, parts, platform, metrics, desired, shutdown } = *self;
        platform.compare_leases(config, metrics, parts, shutdown);
        let executor = Executor {
            parts: parts.clone(),
            metrics: metrics.clone(),
            crash_points: crash_points.into(),
            desired: desired.clone(),
            policy: config.sharing.clone(),
            reserve: config.reserve,
            borrowing: config.borrowing.clone(),
            outage_grace_ms: ends.outage_grace_ms.subscribe(),
            resync: Arc::clone(&ends.resync),
            lent: platform.lent.clone(),
            differences: platform.inventory.differences(),
            nodes: platform.inventory.nodes(),
        };
        shutdown.spawn(executor.run(shutdown.token()));
        if let (Some(channels), Some(api)) = (mig, &platform.api) {
            let keeper = parts.mig_keeper(api.client(), config.mig.clone(), channels, desired.clone())?;
            self.while_active(keeper.run(shutdown.token()));
        }
        Ok(())
    }

    /// Keeps a stream to a broker, which the nodes are offered on, and this cluster's certificate.
    pub(super) fn keep_in_touch(&self, access: BrokerAccess, ends: UplinkEnds, nodes: watch::Receiver<Nodes>) {
        let Self { config, parts, metrics, shutdown, .. } = *self;
        let BrokerAccess { directory, source, brokers, tls } = access;
        let (offer, data) = watch::channel(config.data.site());
        shutdown.spawn(measured::run(
            Arc::clone(&parts.tunnels),
            metrics.clone(),
            Arc::clone(&parts.clock),
            config.data.tell_measured.then_some(offer),
            shutdown.token(),
        ));
        let uplink = Uplink {
            parts: parts.clone(),
            metrics: metrics.clone(),
            brokers: brokers.clone(),
            tls: tls.clone(),
            identity: source.subscribe(),
            nodes,
            data,
            desired: ends.desired,
            outage_grace_ms: ends.outage_grace_ms,
            resync: ends.resync,
            readiness: ends.readiness,
        };
        // Before the uplink, so that no change is missed.
        shutdown.spawn(member_brokers::keep_learnt(&brokers, config.state_dir.clone(), shutdown.token()));
        shutdown.spawn(uplink.run(shutdown.token()));
        let follower = PolicyFollower {
            parts: parts.clone(),
            metrics: metrics.clone(),
            state: config.state_dir.clone(),
            brokers: brokers.clone(),
            tls: tls.clone(),
            desired: self.desired.clone(),
            shown_within: config.signed_policy.shown_within,
        };
        self.while_active(follower.run(shutdown.token()));
        let renewal = Renewal {
            directory,
            source,
            key: parts.member.identity.clone(),
            brokers,
            tls,
            clock: Arc::clone(&parts.clock),
            entropy: Arc::clone(&parts.entropy),
            not_after: metrics.certificate_not_after.clone(),
        };
        self.while_active(renewal.run(shutdown.token()));
    }

    /// Looks after pods of this cluster: reviews those of guests, measures whether they use what they hold, and bursts
    /// its own.
    pub(super) fn look_after_pods(&self, access: &BrokerAccess) {
        let Some(api) = &self.platform.api else { return };
        let stores = watch::Sender::default();
        self.review(api, &stores);
        let uses = UseContext {
            cluster: self.parts.member.cluster.clone(),
            client: api.client(),
            desired: self.desired.clone(),
            lent: self.platform.lent.subscribe(),
            uses: self.parts.uses.clone(),
            clock: Arc::clone(&self.parts.clock),
        };
        usage::start(uses, self.config.usage.dcgm.clone(), self.shutdown);
        if self.config.burst.enabled {
            self.burst(api, access, stores);
        }
    }

    fn review(&self, api: &KubernetesApi, stores: &watch::Sender<RequestedStores>) {
        let Some(settings) = self.config.webhook.clone() else { return };
        let parts = self.parts;
        let reviewers = Reviewers {
            lease_pods: LeasePodsReview::new(api.client(), Arc::clone(&parts.clock)),
            gate: GateReview::new(parts.deliveries.node_service.clone(), stores.subscribe()),
            addresses: RemappedAddressesReview::new(Arc::clone(&parts.remap_book)),
            certificate_end: self.metrics.webhook_certificate_not_after.clone(),
            fence: parts.fence.clone(),
        };
        let registrations = webhook_registrations(self.config);
        let (clock, stop) = (Arc::clone(&parts.clock), self.shutdown.token());
        self.shutdown.spawn(reviewers.run(api.client(), settings, registrations, clock, stop));
    }

    fn burst(&self, api: &KubernetesApi, access: &BrokerAccess, stores: watch::Sender<RequestedStores>) {
        let parts = self.parts;
        let burst = BurstContext {
            cluster: parts.member.cluster.clone(),
            kubernetes: api.clone(),
            settings: self.config.burst.clone(),
            requests: Arc::new(BrokerRequests::new(&parts.member.cluster, &access.brokers, &access.tls)),
            desired: self.desired.clone(),
            records: parts.store.subscribe(),
            nodes: self.platform.inventory.nodes(),
            service: parts.deliveries.node_service.clone(),
            stores,
            saved: parts.saved.clone(),
            clock: Arc::clone(&parts.clock),
        };
        self.while_active(burst::run(burst, self.shutdown.token()));
    }

    /// Runs a task that stands still while another replica may be active.
    fn while_active(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (fence, stop) = (self.parts.fence.clone(), self.shutdown.token());
        self.shutdown.spawn(fence.hold(stop, task));
    }
}
