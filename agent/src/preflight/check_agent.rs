//! The running agent, and the fabric's port, which only it may hold.

use std::net::UdpSocket;

use comity_runtime::checks::{Check, CheckList};

use super::check_udp;
use crate::config::Config;
use crate::services::local_api::{SOCKET, fetch_status};

const AGENT_CHECK: &str = "agent";

pub(super) async fn check(config: &Config, list: &mut CheckList) {
    let status = fetch_status(&config.state_dir.join(SOCKET)).await;
    let listen = config.fabric.listen;
    list.push(match &status {
        Ok(_) => Check::ok(check_udp::UDP_CHECK, format!("the running agent listens on UDP {listen}")),
        Err(_) => match UdpSocket::bind(listen) {
            Ok(_) => Check::ok(check_udp::UDP_CHECK, format!("UDP {listen} is free")),
            Err(error) => Check::failed(
                check_udp::UDP_CHECK,
                format!("cannot listen on UDP {listen}: {error}"),
                format!("end the program that uses it (ss -lunp 'sport = {}'), or set fabric.listen", listen.port()),
            ),
        },
    });
    list.push(match status {
        Ok(status) if status.connected => {
            let (tunnels, lent, borrowed) = (status.tunnels.len(), status.lent.len(), status.borrowed.len());
            Check::ok(
                AGENT_CHECK,
                format!("connected to a broker; tunnels: {tunnels}, lent: {lent}, borrowed: {borrowed}"),
            )
        }
        Ok(_) => {
            Check::failed(AGENT_CHECK, "runs, and is connected to no broker", "see its log; it tries again by itself")
        }
        Err(error) => Check::warning(AGENT_CHECK, error.to_string(), "run `comity-agent run`, as the agent's user"),
    });
}
