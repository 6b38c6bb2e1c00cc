"""NVFlare's private parts we lean on. If an upgrade moves one of them, this says which, before a fleet does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("nvflare")

_LOOK = """
import inspect, json, warnings
warnings.simplefilter("ignore")
import nvflare
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.authenticator import validate_auth_headers
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.server.admin import FedAdminServer
from nvflare.private.fed.server.fed_server import FederatedServer
from nvflare.private.fed.server.job_runner import JobRunner
from nvflare.private.fed.server.server_engine import ServerEngine
from nvflare.private.fed.server.server_runner import ServerRunner

def names(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]

print(json.dumps({
    "version": nvflare.__version__,
    "notify_dead_job": names(ServerEngine.notify_dead_job),
    "check_client_resources": names(ServerEngine.check_client_resources),
    "start_client_job": names(ServerEngine.start_client_job),
    "sync": names(ServerEngine.sync_clients_from_main_process),
    "app_command": names(ServerEngine.register_app_command),
    "deploy_message": names(JobRunner._make_deploy_message),
    "resolve": names(JobRunner.resolve_client_outcome),
    "requests": names(FedAdminServer.send_requests_and_get_reply_dict),
    "clone": names(SimpleJobDefManager.clone),
    "missing job": "missing job on client" in inspect.getsource(FederatedServer._sync_client_jobs),
    "dropped when resolved": "is_client_outcome_pending" in inspect.getsource(FederatedServer.process_job_failure),
    "running_jobs": "self.running_jobs" in inspect.getsource(JobRunner.__init__),
    "task map": "self._client_task_map.pop(client_task.id)" in inspect.getsource(WFCommServer),
    "constants": bool(CellMessageHeaderKeys.TOKEN and CellMessageHeaderKeys.CLIENT_NAME and RunProcessKey.PARTICIPANTS),
    "signed": "token_verifier.verify(client_name, token, signature)" in inspect.getsource(validate_auth_headers),
    "bound": "is bound to origin" in inspect.getsource(validate_auth_headers),
    "authenticate": names(ClientManager.authenticate),
    "heartbeat": names(ClientManager.heartbeat),
    "disable": names(ClientManager.disable_client),
    "most": "len(self.clients) >= self.max_num_clients" in inspect.getsource(ClientManager),
    "polls": "self.config.task_request_interval" in inspect.getsource(ServerRunner._task_try_again),
    "told": "self.client_manager.authenticate(request, fl_ctx)" in inspect.getsource(FederatedServer.register_client),
    "take": names(CoreCell.process_message),
    "taken": "receiver.process_message(sfm_conn.sfm_endpoint.endpoint, sfm_conn.conn, prefix.app_id, message)"
    in inspect.getsource(ConnManager.process_frame_task),
    "certified": "self.identity_resolver.require_match(endpoint_name, peer_cn" in inspect.getsource(
        ConnManager.update_endpoint),
    "lines": all(f"self.{line} = " in inspect.getsource(CoreCell) for line in ("int_listener", "bb_int_connector")),
    "streams": ByteStreamer.tx_task_map == {} and "tx_task_map.get(sid" in inspect.getsource(ByteStreamer._ack_handler),
    "ends itself": inspect.getsource(cells).count("_is_server_job_cell(self"),
    "commands": names(FedAdminAgent.register_processor),
    "run folder": names(Workspace.get_run_dir),
    "outcome": "is_client_outcome_pending(job_id, client_name)" in inspect.getsource(
        FederatedServer.process_job_failure),
    "command": [names(kind.get_command) for kind in (ClientProcessJobLauncher, ServerProcessJobLauncher)],
    "send": names(Cell._send_request)[:5],
    "register": names(Cell._register_request_cb)[:3],
}))
"""


def test_private_parts_are_where_they_were() -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, check=True, text=True).stdout)
    assert found["version"] == "2.9.0", "read docs/howto/fleet.md, 'Another version of NVFlare', before you upgrade"
    assert found == {
        "version": "2.9.0",
        "notify_dead_job": ["job_id", "client_name", "reason"],
        "check_client_resources": ["job", "resource_reqs", "fl_ctx"],
        "start_client_job": ["job", "client_sites", "fl_ctx"],
        "sync": [],
        "app_command": ["topic", "cmd_func", "args", "kwargs"],
        "deploy_message": ["job", "app_data", "app_name", "fl_ctx"],
        "resolve": ["job_id", "client_name"],
        "requests": ["requests", "timeout_secs"],
        "clone": ["from_jid", "meta", "fl_ctx"],
        "missing job": True,
        "dropped when resolved": True,
        "running_jobs": True,
        "task map": True,
        "constants": True,
        "signed": True,
        "bound": True,
        "authenticate": ["request", "fl_ctx"],
        "heartbeat": ["token", "client_name", "client_fqcn", "fl_ctx"],
        "disable": ["client_name"],
        "most": True,
        "polls": True,
        "told": True,
        "take": ["endpoint", "connection", "app_id", "message"],
        "taken": True,
        "certified": True,
        "lines": True,
        "streams": True,
        "ends itself": 4,
        "commands": ["processor"],
        "run folder": ["job_id"],
        "outcome": True,
        "command": [["job_meta", "fl_ctx"]] * 2,
        "send": ["channel", "target", "topic", "request", "timeout"],
        "register": ["channel", "topic", "cb"],
    }
