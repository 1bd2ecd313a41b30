//! Work goes to its data, which agents declare in their configuration.

use std::time::Duration;

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, until};

use crate::OrLogs as _;
use crate::inventories::inventory;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_to_the_donor_that_declares_its_data() {
    let mut federation = Federation::start(FederationConfig::with_example_policy()).await.unwrap();
    for (cluster, gpus, more) in [
        ("polytech-campus", 0, ""),
        ("ncc-main", 16, "data: {datasets: [imagenet-1k]}\n"),
        ("physics-farm", 8, "data: {datasets: [laion], egressMbits: 10000}\n"),
    ] {
        let file = inventory(federation.dir(), cluster, gpus, "midrange");
        let spec = AgentSpec { more: more.to_owned(), ..AgentSpec::new(cluster, InventorySource::File(file)) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let said = federation.comity_as("admin", &["offers", "physics-farm"]).await.or_logs(&federation);
    assert_eq!(said["data"]["datasets"][0], "laion", "{said}");
    assert_eq!(said["data"]["egressMbits"], 10_000, "{said}");

    let submit = |more: &'static [&'static str]| {
        let federation = &federation;
        async move {
            let plain =
                ["request", "submit", "--tenant", "poly-ml", "--origin", "polytech-campus", "--class", "midrange"];
            let request = federation.comity(&[&plain[..], more].concat()).await.or_logs(federation);
            let id = request["id"].as_str().unwrap().to_owned();
            let donor = until("a lease", Duration::from_secs(30), async || {
                let request = federation.comity(&["request", "show", &id]).await?;
                let Some(lease) = request["lease"].as_str() else { return Ok(None) };
                let lease = federation.comity(&["lease", "show", lease]).await?;
                Ok(lease["placement"]["donor"].as_str().map(str::to_owned))
            });
            donor.await.or_logs(federation)
        }
    };
    assert_eq!(submit(&["--data", "laion=40Ti"]).await, "physics-farm");
    assert_eq!(submit(&["--data", "imagenet-1k=150Gi"]).await, "ncc-main");
    assert_eq!(submit(&["--data", "imagenet-1k=150Gi", "--data", "laion=40Ti"]).await, "physics-farm");
}
