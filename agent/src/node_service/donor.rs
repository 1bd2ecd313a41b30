//! The donor's side: its Liqo is checked, and the class controller and the admission policies begin their work.
//!
//! They begin before anything is known to be lent, and with everything that is: grants follow from the records.

use std::sync::Arc;

use tokio::sync::watch;

use super::DonorSide;
use crate::config::Config;
use crate::delivery::{DeliveryError, Grants, NodeLender, VirtualNodeDonor};
use crate::kubernetes_api::KubernetesApi;
use crate::liqo::donor::{
    ClassController, DonorSettings, Installation, InstallationSettings, LiqoDonor, NamespaceKeeper, PolicyKeeper,
    PolicySettings, check_installation, own_user_name,
};
use crate::observe::NodeSalt;
use comity_runtime::Shutdown;

/// Puts the donor's side together. What is wrong with the installation keeps it from lending, not from taking down what was
/// lent.
pub(super) async fn start(
    config: &Config,
    api: &KubernetesApi,
    liqo_id: &str,
    grants: watch::Receiver<Arc<Grants>>,
    (salt, shutdown): (&NodeSalt, &Shutdown),
) -> Result<DonorSide, DeliveryError> {
    let client = api.client();
    let mut policies = PolicySettings::new(&own_user_name(&client).await?, &config.liqo.agent_namespace, liqo_id);
    policies.liqo_namespace.clone_from(&config.liqo.namespace);
    policies.same_names = config.liqo.same_namespace_names;
    let keeper = PolicyKeeper::start(client.clone(), policies, grants.clone());
    let liqo = LiqoDonor::new(client.clone(), DonorSettings::new(liqo_id, api.target()));
    let lender = NodeLender::new(client.clone(), liqo, salt.clone(), keeper.in_force());
    let health = match installation(config, api).await {
        Ok(_) => keeper.health(),
        Err(error) => {
            let reason = match error {
                DeliveryError::Permanent { message, .. } => message,
                temporary @ DeliveryError::Temporary { .. } => temporary.to_string(),
            };
            tracing::error!(reason, "this cluster lends no virtual nodes until that is put right and the agent is started again");
            watch::channel(Err(reason)).1
        }
    };
    let stop = shutdown.token();
    shutdown.spawn(async move {
        // The policies stay in the cluster when their keeper ends: what was granted goes on under them.
        let _keeper = keeper;
        tokio::select! {
            () = stop.cancelled() => {}
            () = ClassController::run(client.clone(), grants) => tracing::warn!("the class controller ended"),
            () = NamespaceKeeper::run(client) => tracing::warn!("the keeper of namespaces ended"),
        }
    });
    let side: Arc<dyn VirtualNodeDonor> = Arc::new(lender);
    Ok(DonorSide { side, health })
}

async fn installation(config: &Config, api: &KubernetesApi) -> Result<Installation, DeliveryError> {
    let settings = InstallationSettings { namespace: config.liqo.namespace.clone(), ..InstallationSettings::default() };
    check_installation(&api.client(), &settings).await
}
