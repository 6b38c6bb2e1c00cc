"""A component of NVFlare's server process that keeps a run going through the faults NVFlare gives up at.

    a client restarts, or comes late       NVFlare registers it and never gives it the running job: deploy it again
    a client's job process is killed       NVFlare fails the whole job: do not, deploy it again
    the job's server process is killed     the job is lost: put a copy in the queue; it finds the checkpoint
    the whole server was killed            the job stays listed as running: end it, put a copy in the queue

NVFlare 2.9.0 has no public way to do this, so private functions are called; tests/fleet/test_private.py guards them.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import ALL_SITES, Job, JobMetaKey, RunStatus
from nvflare.apis.job_scheduler_spec import DispatchInfo
from nvflare.private.admin_defs import MsgHeader, ReturnCode
from nvflare.private.defs import CellChannel, CellChannelTopic, CellMessageHeaderKeys, JobFailureMsgKey

from cos2p.tracking.files import read_stop_note

LOOK_SECONDS = 2.0
SETTLE_SECONDS = 0.3
"""Lets the answer to a registration reach the client before the job does."""

RESTARTS = 5
RESTART_SECONDS = 300.0
"""A run whose server process dies more often than `RESTARTS` times in this span is not started again."""

ANSWER_SECONDS = 30.0
"""That a device may take to answer when it is given a run."""

_CRASHED = (RunStatus.FINISHED_ABNORMAL, RunStatus.FINISHED_EXECUTION_EXCEPTION)

_OF_ONE_JOB = (
    JobMetaKey.JOB_ID,
    JobMetaKey.STATUS,
    JobMetaKey.JOB_CLIENTS,
    JobMetaKey.SCHEDULE_COUNT,
    JobMetaKey.LAST_SCHEDULE_TIME,
    JobMetaKey.SCHEDULE_HISTORY,
    JobMetaKey.JOB_DEPLOY_DETAIL,
)
"""Fields that a copy of a job must not inherit."""


class Rejoin(FLComponent):  # type: ignore[misc]  # NVFlare is not typed
    def __init__(self) -> None:
        super().__init__()
        self._wake = threading.Event()
        self._lost: set[tuple[str, str]] = set()
        """(job, client) whose job process is gone."""
        self._restarts: dict[str, list[float]] = {}
        self._engine: Any = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._engine = fl_ctx.get_engine()
            self._be_patient()
            self._listen_for_lost_jobs()
            threading.Thread(target=self._look_after, daemon=True).start()
        elif event_type in (EventType.CLIENT_REGISTER_PROCESSED, EventType.JOB_STARTED):
            self._engine.server.admin_server.timeout = ANSWER_SECONDS  # which is not there when the system starts
            self._wake.set()
        elif event_type == EventType.JOB_COMPLETED:
            data = fl_ctx.get_prop(FLContextKey.EVENT_DATA) or {}
            job_id = data.get(JobMetaKey.JOB_ID.value)
            if job_id:
                threading.Thread(target=self._completed, args=(job_id,), daemon=True).start()

    def _be_patient(self) -> None:
        """NVFlare takes a device for lost that does not answer within 10 s, which one message may take."""
        engine, send = self._engine, self._engine._send_admin_requests
        engine._send_admin_requests = lambda requests, fl_ctx, timeout_secs=0: send(requests, fl_ctx, ANSWER_SECONDS)

    def _listen_for_lost_jobs(self) -> None:
        original = self._engine.notify_dead_job

        def notify(job_id: str, client: str, reason: str) -> None:
            original(job_id, client, reason)
            if reason == "missing job on client":
                self._lost.add((job_id, client))
                self._wake.set()

        self._engine.notify_dead_job = notify
        self._ignore_reports()

    def _ignore_reports(self) -> None:
        """A client that reports that its job failed has nothing to say about the jobs of the others."""
        server = self._engine.server
        heard = server.process_job_failure

        def hear(request: Any) -> Any:
            client = self._engine.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
            if client is not None and isinstance(request.payload, dict):
                job = str(request.payload.get(JobFailureMsgKey.JOB_ID))
                self._engine.job_runner.resolve_client_outcome(job, client.name)
            return heard(request)

        topic = CellChannelTopic.REPORT_JOB_FAILURE
        server.cell.register_request_cb(channel=CellChannel.SERVER_MAIN, topic=topic, cb=hear)

    # ------------------------------------------------------------ jobs that lost their server process

    def _manager(self) -> Any:
        return self._engine.get_component(SystemComponents.JOB_MANAGER)

    def _requeue_left_over(self) -> None:
        """Jobs a killed server left as running."""
        with self._engine.new_context() as fl_ctx:
            for job in self._manager().get_jobs_by_status([RunStatus.RUNNING, RunStatus.DISPATCHED], fl_ctx):
                self._manager().set_status(job.job_id, RunStatus.FINISHED_ABNORMAL, fl_ctx)
                self._copy(job, fl_ctx)

    def _completed(self, job_id: str) -> None:
        with self._engine.new_context() as fl_ctx:
            job = self._manager().get_job(job_id, fl_ctx)
            if job is None:
                return
            name, now = str(job.meta.get(JobMetaKey.JOB_NAME.value)), time.monotonic()
            if read_stop_note(Path(fl_ctx.get_workspace().get_root_dir()) / "runs" / name) is not None:
                self._manager().set_status(job_id, RunStatus.FINISHED_ABORTED, fl_ctx)  # no device could take part, say
            if job.meta.get(JobMetaKey.STATUS.value) not in [status.value for status in _CRASHED]:
                return
            recent = [then for then in self._restarts.get(name, []) if now - then < RESTART_SECONDS]
            if len(recent) >= RESTARTS:
                self.logger.error(f"{name}: its server process ended {len(recent)} times; not started again")
                return
            self._restarts[name] = [*recent, now]
            self._copy(job, fl_ctx)

    def _copy(self, job: Job, fl_ctx: FLContext) -> None:
        left_out = {key.value for key in _OF_ONE_JOB}
        meta = {str(key): value for key, value in job.meta.items() if str(key) not in left_out}
        copy = self._manager().clone(job.job_id, meta | {JobMetaKey.CLONED_FROM.value: job.job_id}, fl_ctx)
        self.logger.info(f"job {job.job_id} lost its server process; goes on as {copy[JobMetaKey.JOB_ID.value]}")

    # ------------------------------------------------------------ clients that lost their job

    def _look_after(self) -> None:
        try:
            self._requeue_left_over()
        except Exception as error:
            self.logger.error(f"jobs of an earlier server could not be queued again: {error!r}")
        while True:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            time.sleep(SETTLE_SECONDS)
            for job_id, job in list(self._engine.job_runner.running_jobs.items()):
                try:
                    self._look_after_job(job_id, job)
                except Exception as error:  # a client that vanished again; the next look tries anew
                    self.logger.error(f"job {job_id}: {error!r}")

    def _look_after_job(self, job_id: str, job: Job) -> None:
        process = self._engine.run_processes.get(job_id)
        if not process:
            return
        runner, here = self._engine.job_runner, process[RunProcessKey.PARTICIPANTS]
        for client in list(here.values()):
            runner.resolve_client_outcome(job_id, client.name)  # one client's death must not fail the job
        for client in list(self._engine.get_clients()):
            if client.token not in here or (job_id, client.name) in self._lost:
                self._lost.discard((job_id, client.name))
                self._deploy(job_id, job, process, client)
                here = process[RunProcessKey.PARTICIPANTS]

    def _deploy(self, job_id: str, job: Job, process: dict[str, Any], client: Client) -> None:
        """The running job, to this client alone."""
        engine, runner = self._engine, self._engine.job_runner
        sites = job.get_deployment().items()
        app = next((app for app, names in sites if client.name in names or ALL_SITES in names), None)
        if app is None:
            return
        began = time.monotonic()
        with engine.new_context() as fl_ctx:
            message = runner._make_deploy_message(job, job.get_application(app, fl_ctx), app, fl_ctx)
            replies = engine.server.admin_server.send_requests_and_get_reply_dict(
                {client.token: message}, timeout_secs=ANSWER_SECONDS
            )
            reply = replies[client.token]
            if not reply or reply.get_header(MsgHeader.RETURN_CODE, ReturnCode.OK) != ReturnCode.OK:
                raise RuntimeError(f"the job could not be given to {client.name}: {reply and reply.body}")
            fits, token = engine.check_client_resources(job, {client.name: {}}, fl_ctx)[client.name]
            if not fits:
                raise RuntimeError(f"{client.name} has no resources for the job: {token}")
            here = {t: c for t, c in process[RunProcessKey.PARTICIPANTS].items() if c.name != client.name}
            here[client.token] = client
            job.meta[JobMetaKey.JOB_CLIENTS] = [c.to_dict() for c in here.values()]
            process[RunProcessKey.PARTICIPANTS] = here  # the job's server process asks for this every second
            engine.start_client_job(job, {client.name: DispatchInfo(app, {}, token)}, fl_ctx)
        self.logger.info(f"{client.name} is back in job {job_id} after {time.monotonic() - began:.2f} s")
