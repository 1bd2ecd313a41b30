//! A donor that lends by token: tokens are short-lived, are replaced while pods run, and can be revoked.

use std::time::Duration;

use anyhow::ensure;
use comity_scenarios::burst::{Burst, BurstConfig, NAMESPACE};
use comity_scenarios::{PATIENCE, until};
use comity_testkit::{LiqoVersion, RealCluster, RealClusters, requirements};
use serde_json::Value;

use crate::{OrLogs as _, is_long};

/// Namespaces in which each cluster's Liqo keeps objects of the other, and the origin's ServiceAccount on the donor.
const ON_ORIGIN: &str = "liqo-tenant-donor";
const ON_DONOR: &str = "liqo-tenant-origin";
const ACCOUNT: &str = "comity-liqo-peer";
/// Interval at which the donor renews the token.
const ROTATION: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of its own: ./test long runs it"]
async fn a_lease_by_token_outlives_its_tokens_and_ends_with_their_account() {
    if !requirements::met("a lease by token through Liqo", &RealClusters::missing()) {
        return;
    }
    assert_eq!(LiqoVersion::from_environment().unwrap(), LiqoVersion::V1_2_0, "tokens need Liqo 1.2");
    let donor_liqo = &["authentication: token", "tokenRotationSeconds: 20"];
    let burst = Burst::start(&BurstConfig { donor_liqo, ..BurstConfig::default() }).await.unwrap();
    a_token_is_replaced_while_a_pod_runs(&burst).await;
    nothing_is_left(&burst).await;
    deleting_the_account_takes_the_access_away(&burst).await;
    nothing_is_left(&burst).await;
    burst.stop().await.unwrap();
}

/// The Secret with which the origin's Liqo calls the donor's API server.
async fn credential(burst: &Burst) -> anyhow::Result<Value> {
    let path = "jsonpath={.data.kubeconfig}";
    let secret = ["-n", ON_ORIGIN, "get", "secret", "kubeconfig-controlplane-donor", "-o", path];
    let text = burst.clusters.origin.kubectl(&secret).await?;
    let kubeconfig: Value = serde_json::from_slice(&decode(&text)?)?;
    Ok(kubeconfig["users"][0]["user"].clone())
}

fn decode(text: &str) -> anyhow::Result<Vec<u8>> {
    use base64::Engine as _;
    Ok(base64::engine::general_purpose::STANDARD.decode(text.trim())?)
}

/// The donor's API server status according to the origin's Liqo.
async fn api_server_status(burst: &Burst) -> anyhow::Result<String> {
    let path = "jsonpath={.status.conditions[?(@.type==\"APIServerStatus\")].status}";
    Ok(burst.clusters.origin.kubectl(&["get", "foreignclusters.core.liqo.io", "donor", "-o", path]).await?)
}

/// The identity of a token according to the donor's API server.
async fn whoami(burst: &Burst, token: &str) -> anyhow::Result<String> {
    let token = format!("--token={token}");
    // The administrator's certificate would come before the token.
    let server = format!("--server={}", burst.clusters.donor.server_url());
    let ca = format!("--certificate-authority={}", burst.clusters.donor.ca_path().display());
    let path = "jsonpath={.status.userInfo.username}";
    let args = ["auth", "whoami", "-o", path, &token, &server, &ca];
    Ok(burst.clusters.donor.kubectl_as(std::path::Path::new("/dev/null"), &args, "").await?)
}

async fn a_token_is_replaced_while_a_pod_runs(burst: &Burst) {
    let federation = burst.federation();
    let cold = burst.run_job("train", 1, &["serve", "1800"]).await.or_logs(federation);
    println!("cold, by token:\n{cold}");
    let identities = ["get", "identities.authentication.liqo.io", "-n", ON_ORIGIN, "-o", "name"];
    let identities = burst.clusters.origin.kubectl(&identities).await.unwrap();
    assert!(!identities.contains("controlplane"), "no keys were exchanged: {identities}");
    let first = credential(burst).await.unwrap();
    let token = first["token"].as_str().unwrap().to_owned();
    assert_eq!(whoami(burst, &token).await.unwrap(), format!("system:serviceaccount:{ON_DONOR}:{ACCOUNT}"));

    // Two further tokens, so that every user of tokens has used the second.
    let mut before = first;
    for _ in 0..2 {
        let now = until("another token", PATIENCE, async || {
            let now = credential(burst).await?;
            Ok((now["token"] != before["token"]).then_some(now))
        })
        .await
        .or_logs(federation);
        assert_ne!(now["client-certificate-data"], before["client-certificate-data"], "Liqo would not see it");
        before = now;
    }
    let manager = ["-n", "liqo", "logs", "deployment/liqo-controller-manager", "--tail=-1"];
    until("Liqo to ask with the new token", PATIENCE, async || {
        let log = burst.clusters.origin.kubectl(&manager).await?;
        Ok(log.contains("Certificate changed for foreign cluster \"donor\"").then_some(()))
    })
    .await
    .or_logs(federation);
    assert_eq!(api_server_status(burst).await.unwrap(), "Established");
    let path = "jsonpath={.items[0].status.containerStatuses[0].restartCount}{.items[0].status.phase}";
    let pod = ["get", "pods", "-A", "-l", "app=train", "-o", path];
    assert_eq!(burst.clusters.donor.kubectl(&pod).await.unwrap(), "0Running");
    if is_long() {
        outlive_the_first_tokens(burst).await;
    }

    // The peering continues with the newest token: another lease is replicated and granted over it.
    let warm = burst.run_job("again", 1, &["see"]).await.or_logs(federation);
    println!("with a later token:\n{warm}");
    burst.complete("again").await.or_logs(federation);
    let delete = ["-n", NAMESPACE, "delete", "job", "train", "--timeout=120s"];
    burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
}

/// Waits longer than the ten minutes that Kubernetes grants tokens at least; afterwards only newer tokens work.
async fn outlive_the_first_tokens(burst: &Burst) {
    for _ in 0..66 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(api_server_status(burst).await.unwrap(), "Established");
        let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        let nodes = ["get", "nodes", "-l", "liqo.io/type=virtual-node", "-o", ready];
        assert_eq!(burst.clusters.origin.kubectl(&nodes).await.unwrap(), "True");
    }
}

/// Revokes the origin's access as the donor's administrator.
async fn deleting_the_account_takes_the_access_away(burst: &Burst) {
    let federation = burst.federation();
    burst.run_job("unwanted", 1, &["serve", "1800"]).await.or_logs(federation);
    let token = credential(burst).await.unwrap()["token"].as_str().unwrap().to_owned();
    whoami(burst, &token).await.unwrap();
    burst.clusters.donor.kubectl(&["-n", ON_DONOR, "delete", "serviceaccount", ACCOUNT]).await.unwrap();
    // An API server caches authentications for ten seconds.
    until("the token to be refused", PATIENCE, async || {
        let answer = whoami(burst, &token).await;
        Ok(answer.is_err_and(|error| error.to_string().contains("must be logged in")).then_some(()))
    })
    .await
    .or_logs(federation);
    until("Liqo to be refused", PATIENCE, async || Ok((api_server_status(burst).await? == "Error").then_some(())))
        .await
        .or_logs(federation);
    // Nothing restores it.
    tokio::time::sleep(2 * ROTATION).await;
    let accounts = ["-n", ON_DONOR, "get", "serviceaccounts", "-o", "name"];
    let accounts = burst.clusters.donor.kubectl(&accounts).await.unwrap();
    assert!(!accounts.contains(ACCOUNT), "{accounts}");
    assert!(whoami(burst, credential(burst).await.unwrap()["token"].as_str().unwrap()).await.is_err());
    let delete = ["-n", NAMESPACE, "delete", "job", "unwanted", "--wait=false"];
    burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
}

/// Neither the lease nor the peering leaves anything.
async fn nothing_is_left(burst: &Burst) {
    let federation = burst.federation();
    burst.no_lease().await.or_logs(federation);
    federation.no_peering(PATIENCE).await.or_logs(federation);
    burst.nothing_left().await.or_logs(federation);
    for (cluster, namespace, peer) in
        [(&burst.clusters.origin, ON_ORIGIN, "donor"), (&burst.clusters.donor, ON_DONOR, "origin")]
    {
        until("the tenant namespace to go", PATIENCE, async || {
            no_trace(cluster, namespace, peer).await.map(|()| Some(()))
        })
        .await
        .or_logs(federation);
    }
}

async fn no_trace(cluster: &RealCluster, namespace: &str, peer: &str) -> anyhow::Result<()> {
    let left = cluster.kubectl(&["get", "namespaces,foreignclusters.core.liqo.io", "-o", "name"]).await?;
    ensure!(!left.contains(namespace), "{} has {left}", cluster.name());
    ensure!(!left.contains(&format!("/{peer}\n")), "{} has {left}", cluster.name());
    Ok(())
}
