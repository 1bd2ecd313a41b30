//! The agent's Kubernetes side against a real API server, with only the rights of `deploy/agent/`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::{Mutex, PoisonError};

use comity_testkit::{Binaries, LiqoConfig, Needs, RealClusters, RealClustersConfig, requirements};

#[path = "kubernetes/broker.rs"]
mod broker;
#[path = "kubernetes/burst.rs"]
mod burst;
#[path = "kubernetes/nodes/canary.rs"]
mod canary;
#[path = "kubernetes/claims.rs"]
mod claims;
#[path = "kubernetes/cleaning.rs"]
mod cleaning;
#[path = "kubernetes/cluster.rs"]
mod cluster;
#[path = "kubernetes/delivery.rs"]
mod delivery;
#[path = "kubernetes/nodes/device_conflict.rs"]
mod device_conflict;
#[path = "kubernetes/drift.rs"]
mod drift;
#[path = "kubernetes/hami.rs"]
mod hami;
#[path = "kubernetes/hold.rs"]
mod hold;
#[path = "kubernetes/inventory.rs"]
mod inventory;
#[path = "kubernetes/nodes/lease_nodes.rs"]
mod lease_nodes;
#[path = "kubernetes/lease_pods.rs"]
mod lease_pods;
#[path = "kubernetes/liqo_donor.rs"]
mod liqo_donor;
#[path = "kubernetes/liqo_network.rs"]
mod liqo_network;
#[path = "kubernetes/liqo_origin.rs"]
mod liqo_origin;
#[path = "kubernetes/mig.rs"]
mod mig;
#[path = "kubernetes/mig_node.rs"]
mod mig_node;
#[path = "kubernetes/liqo_origin/offloading.rs"]
mod offloading;
#[path = "kubernetes/origin.rs"]
mod origin;
#[path = "kubernetes/liqo_network/pod_addresses.rs"]
mod pod_addresses;
#[path = "kubernetes/guests/protections.rs"]
mod protections;
#[path = "kubernetes/reclaim.rs"]
mod reclaim;
#[path = "kubernetes/rights.rs"]
mod rights;
#[path = "kubernetes/rotation.rs"]
mod rotation;
#[path = "kubernetes/nodes/standby.rs"]
mod standby;

/// Only one pair of clusters with real kubelets at a time: two cores are not fast enough for more.
static REAL_CLUSTERS: Mutex<()> = Mutex::new(());

/// One control plane serves all: each part uses its own namespaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_works_on_a_real_api_server() {
    let cluster = cluster::Cluster::start().await;
    // This takes a minute, in which the others run.
    let replaced = rotation::a_token_is_replaced(&cluster).await;
    inventory::nodes_pods_and_leases_become_an_offer(&cluster).await;
    delivery::a_lease_is_exactly_what_was_leased(&cluster).await;
    delivery::after_removal_the_token_is_refused_and_the_namespace_gone(&cluster).await;
    delivery::a_tenant_cannot_outlive_its_lease_with_a_token_of_its_own(&cluster).await;
    delivery::namespaces_of_others_are_left_alone(&cluster).await;
    lease_pods::pods_are_completed_or_refused(&cluster).await;
    protections::each_holds_and_is_needed(&cluster).await;
    hami::a_twentieth_of_a_gpu_is_a_twentieth(&cluster).await;
    hami::a_container_gets_one_share_of_mps(&cluster).await;
    lease_nodes::pods_of_a_lease_stay_on_its_nodes(&cluster).await;
    claims::devices_of_a_driver_are_lent_by_claims(&cluster).await;
    mig::devices_are_cut_and_merged_back(&cluster).await;
    drift::a_drifted_pod_is_local_use_and_is_evicted(&cluster).await;
    device_conflict::a_device_conflict_is_reported_and_its_node_lends_nothing(&cluster).await;
    drift::no_node_runs_more_of_a_lease_than_was_placed_there(&cluster).await;
    drift::a_node_that_is_made_again_gets_its_marks(&cluster).await;
    canary::a_node_lends_once_its_canaries_found_nothing(&cluster).await;
    lease_nodes::a_virtual_node_is_counted_on_each_of_its_nodes(&cluster).await;
    hold::leased_gpus_are_held_until_pods_of_the_lease_come(&cluster).await;
    cleaning::nodes_are_cleaned_after_a_lease(&cluster).await;
    hold::pods_that_wait_for_leased_gpus_are_local_use(&cluster).await;
    rights::the_agent_is_held_to_the_namespaces_of_leases(&cluster).await;
    rights::the_agent_registers_no_webhooks(&cluster).await;
    standby::a_lease_that_is_made_again_has_no_second_holder(&cluster).await;
    standby::one_candidate_at_a_time_holds_the_lease(&cluster).await;
    standby::a_replica_has_one_lease_and_one_secret(&cluster).await;
    standby::services_lead_to_the_active_replica(&cluster).await;
    standby::the_component_makes_two_replicas(&cluster).await;
    origin::a_kubeconfig_secret_opens_the_lease(&cluster).await;
    rights::the_agent_may_change_only_what_a_burst_needs(&cluster).await;
    pod_addresses::remapped_addresses_are_translated(&cluster).await;
    offloading::namespaces_go_to_leases_of_their_tenant(&cluster).await;
    burst::definitions_refuse_invalid_objects(&cluster).await;
    burst::pods_run_on_leases(&cluster).await;
    burst::a_gpu_request_lives_and_ends(&cluster).await;
    reclaim::a_reclaim_is_announced_and_answered(&cluster).await;
    replaced.goes_on().await;
    delivery::watches_survive_an_outage_of_the_api_server(&cluster).await;
    cluster.stop().await;
}

/// Two control planes with Liqo's real controllers; they need no privileges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_networks_of_two_liqos_are_connected_through_the_agents() {
    liqo_network::two_liqos_are_connected_and_parted().await;
}

/// Two clusters with real Liqo; the test plays the consumer, with the credentials that Liqo gives it.
#[test]
fn a_donor_lends_through_real_liqo_exactly_what_was_leased() {
    if requirements::met("lending through Liqo", &RealClusters::missing()) {
        let _alone = REAL_CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::runtime::Runtime::new().unwrap().block_on(liqo_donor::lending_through_liqo());
    }
}

/// On two clusters with real kubelets and Liqo; the agent's part runs in the network of the origin's node.
#[test]
fn the_origin_borrows_through_liqo() {
    if !requirements::met("the_origin_borrows_through_liqo", &RealClusters::missing()) {
        return;
    }
    let _alone = REAL_CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let outside = tokio::runtime::Runtime::new().unwrap();
    let clusters = outside.block_on(async {
        let binaries = Binaries::ensure(Needs::Liqo).await.unwrap();
        let config =
            RealClustersConfig { liqo: Some(LiqoConfig::default()), dns: true, ..RealClustersConfig::default() };
        RealClusters::start(&binaries, config).await.unwrap()
    });
    let outcome = std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            liqo_origin::enter_network(clusters.origin.init_pid());
            // A single thread, which is the one that entered the network.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(liqo_origin::run(&clusters));
        });
        inside.join()
    });
    outside.block_on(clusters.stop()).unwrap();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
