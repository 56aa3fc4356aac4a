"""A stand-in for Kubeflow Pipelines: its v2beta1 API over HTTP, for the real SDK, and the controller of schedules.

With `execute=True` a run is truly run: the graph that was uploaded, by kfp's local runner (see
`tests.doubles.kubeflow_execution`). Behaviour and messages follow the server's sources, release 2.16; what they
say about schedules is in `FakeKubeflow.fire`.
"""

import base64
import contextlib
import json
import re
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.doubles.kubeflow_execution import Execution
from tests.doubles.kubeflow_macros import cron_error, expand

_MOUNT = "/mnt/shardline"
_ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
_KINDS = {
    "STRING": (str, "string"),
    "NUMBER_INTEGER": ((int, float), "double or integer"),
    "NUMBER_DOUBLE": ((int, float), "double or integer"),
    "BOOLEAN": (bool, "bool"),
    "LIST": (list, "list"),
    "STRUCT": (dict, "struct"),
}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


class FakeKubeflow:
    """Serves until its block is left.

    Args:
        folder: Where runs that are executed keep their files.
        execute: Whether runs are truly run. If not, a test says how they fare, by `set_state`.
        env: More environment for the steps of such runs.
        token: Bearer token without which everything is refused.
        multi_user: Whether everything belongs to a namespace.
        login_page: Whether every request is led to a page that asks for a login.

    Attributes:
        url: Its address.
        claim: Folder that executed steps have in the place of /mnt/shardline, where their pods mount the claim.
        pipelines: By id.
        versions: By id; `manifest` is the YAML that was uploaded.
        experiments: By id.
        runs: By id, in order of creation.
        recurring_runs: By id, in order of creation.
        requests: All requests so far.
        clock: What it takes for the time; a test may set another.
    """

    def __init__(self, folder, execute=False, env=None, token=None, multi_user=False, login_page=False):
        self.folder = Path(folder)
        self.claim = self.folder / "claim"
        self.execute, self.env, self.token = execute, env or {}, token
        self.multi_user, self.login_page = multi_user, login_page
        self.pipelines: dict[str, dict] = {}
        self.versions: dict[str, dict] = {}
        self.experiments: dict[str, dict] = {}
        self.runs: dict[str, dict] = {}
        self.recurring_runs: dict[str, dict] = {}
        self.requests: list[Request] = []
        self.executions: dict[str, Execution] = {}
        self.clock = lambda: datetime.now(UTC)
        self._faults: list[dict] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        for execution in self.executions.values():
            execution.close()

    def fail(self, status, times=1, path="", body=None, method=None, content_type="application/json"):
        """Answer the next requests whose path has a match for `path` like this; status 0 drops the connection."""
        self._faults.append(
            {"status": status, "left": times, "path": path, "body": body, "method": method, "type": content_type}
        )

    def set_state(self, run_id, state, tasks=None, error=""):
        """Say how a run fares."""
        with self._changed:
            run = self.runs[run_id]
            run["state"] = state
            if error:
                run["error"] = {"code": 2, "message": error}
            for name, task_state in (tasks or {}).items():
                details = run["run_details"]["task_details"]
                known = next((task for task in details if task["display_name"] == name), None)
                if known is None:
                    # As Argo's nodes are shown: each step with its driver, and a pod that has no name of its own.
                    details += [
                        _task(f"{name}-driver", "SUCCEEDED", self._now()),
                        _task("executor", "RUNNING", None),
                    ]
                    known = _task(name, task_state, self._now())
                    details.append(known)
                known["state"] = task_state
            if state in _ENDED:
                run["finished_at"] = self._now()
            self._changed.notify_all()

    def wait(self, run_id, *states, timeout=60):
        """Wait until a run is in one of the states (any at its end, if none is given)."""
        wanted = states or _ENDED
        with self._changed:
            done = self._changed.wait_for(lambda: self.runs[run_id]["state"] in wanted, timeout)
            assert done, f"the run is {self.runs[run_id]['state']}: {self.log(run_id)}"
            return self.runs[run_id]

    def log(self, run_id):
        """All output of a run that was executed."""
        execution = self.executions.get(run_id)
        return execution.log.read_text(errors="replace") if execution else ""

    def fire(self, recurring_run_id, *scheduled_times):
        """The controller finds these times of a schedule due, now; returns the runs that it starts.

        A paused schedule starts none, nor one of which `max_concurrency` runs go on: such times stay due. With
        no_catchup, of several times only the last gets a run. A schedule without a version takes the newest, and
        its macros are filled in; one with a version holds a compiled workflow, whose parameters they never reach.
        """
        with self._lock:
            schedule = self.recurring_runs[recurring_run_id]
            due = sorted([*schedule["_due"], *scheduled_times])
            if schedule["no_catchup"]:
                due = due[-1:]
            started = []
            while due and schedule["mode"] == "ENABLE":
                active = [
                    run
                    for run in self.runs.values()
                    if run.get("recurring_run_id") == recurring_run_id and run["state"] not in _ENDED
                ]
                if len(active) >= int(schedule["max_concurrency"]):
                    break
                started.append(self._start_scheduled(schedule, due.pop(0)))
            schedule["_due"] = due
            return started

    # What follows answers requests.

    def _start_scheduled(self, schedule, scheduled):
        schedule["_index"] += 1
        reference = schedule["pipeline_version_reference"]
        pinned = reference.get("pipeline_version_id")
        run_id = str(uuid.uuid4())
        parameters = schedule["runtime_config"].get("parameters", {})
        if not pinned:
            macros = {"scheduled": scheduled, "now": self.clock(), "index": schedule["_index"], "run_id": run_id}
            parameters = {
                key: json.loads(expand(json.dumps(value), **macros)) for key, value in parameters.items()
            }
        key = f"{schedule['_resource']}-{schedule['_index']}"
        return self._start(
            {
                "display_name": f"{key}-{_fnv32a(key)}",
                "experiment_id": schedule["experiment_id"],
                "pipeline_version_reference": {
                    "pipeline_id": reference["pipeline_id"],
                    "pipeline_version_id": pinned or self._newest(reference["pipeline_id"])["pipeline_version_id"],
                },
                "runtime_config": {"parameters": parameters},
                "service_account": schedule["service_account"],
                "recurring_run_id": schedule["recurring_run_id"],
                "scheduled_at": _rfc3339(scheduled),
            },
            run_id,
        )

    def _start(self, body, run_id):
        run = {
            "service_account": "pipeline-runner",
            "storage_state": "AVAILABLE",
            **{key: value for key, value in body.items() if value is not None},
            "run_id": run_id,
            "created_at": self._now(),
            "state": "PENDING",
            "run_details": {
                "task_details": [
                    _task(name, "RUNNING", self._now()) for name in ("root", "root-driver", "exit-handler-1")
                ]
            },
        }
        run.setdefault("scheduled_at", run["created_at"])
        self.runs[run_id] = run
        if self.execute:
            manifest = self.versions[run["pipeline_version_reference"]["pipeline_version_id"]]["_manifest"]
            parameters = json.dumps(run["runtime_config"].get("parameters", {}))
            self.claim.mkdir(parents=True, exist_ok=True)
            self.executions[run_id] = Execution(
                self.folder / run_id,
                manifest.replace(_MOUNT, str(self.claim)),
                run["display_name"],
                json.loads(parameters.replace(_MOUNT, str(self.claim))),
                self.env,
                lambda state, tasks: self.set_state(run_id, state, tasks),
            )
        return run

    def _now(self):
        return _rfc3339(self.clock())

    def _newest(self, pipeline_id):
        mine = [version for version in self.versions.values() if version["pipeline_id"] == pipeline_id]
        return mine[-1]

    def _answer(self, request):
        """A status and a body for a request."""
        path = re.sub(r".*/apis/v2beta1/", "", request.path)
        for pattern, methods in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and request.method in methods:
                with self._lock:
                    return 200, getattr(self, methods[request.method])(request, *match.groups())
        raise _Refused(404, 5, "Not Found")

    def _healthz(self, request):
        return {"multi_user": self.multi_user}

    def _list_experiments(self, request):
        return self._page(request, "experiments", self._in_namespace(request, self.experiments))

    def _create_experiment(self, request):
        body = request.body
        if any(
            one["display_name"] == body["display_name"] and one["namespace"] == body.get("namespace", "")
            for one in self.experiments.values()
        ):
            raise _Refused(
                409, 6, f"Failed to create a new experiment. The name {body['display_name']} already exist"
            )
        if self.multi_user and not body.get("namespace"):
            raise _Refused(400, 3, "Invalid input error: Experiment has no namespace")
        one = {"namespace": "", **body, "experiment_id": str(uuid.uuid4()), "created_at": self._now()}
        self.experiments[one["experiment_id"]] = one
        return one

    def _get_experiment(self, request, key):
        return _found(self.experiments, key, "Experiment")

    def _list_pipelines(self, request):
        return self._page(request, "pipelines", self._in_namespace(request, self.pipelines))

    def _get_pipeline(self, request, key):
        return _found(self.pipelines, key, "Pipeline")

    def _upload_pipeline(self, request):
        query = request.query
        manifest = _uploaded(request.body)
        name = query.get("name") or _spec(manifest)["pipelineInfo"]["name"]
        namespace = query.get("namespace", "")
        if any((one["name"], one["namespace"]) == (name, namespace) for one in self.pipelines.values()):
            raise _Refused(
                409,
                6,
                f"Failed to create a new pipeline. The name {name} already exist. Please specify a new name",
            )
        one = {
            "pipeline_id": str(uuid.uuid4()),
            "name": name,
            "display_name": query.get("display_name") or name,
            "description": query.get("description", ""),
            "namespace": namespace,
            "created_at": self._now(),
        }
        self.pipelines[one["pipeline_id"]] = one
        self._add_version(one["pipeline_id"], name, manifest)
        return one

    def _upload_version(self, request):
        query = request.query
        pipeline = _found(self.pipelines, query["pipelineid"], "Pipeline")["pipeline_id"]
        return self._add_version(pipeline, query["name"], _uploaded(request.body), query.get("description", ""))

    def _add_version(self, pipeline, name, manifest, description=""):
        if any((v["pipeline_id"], v["name"]) == (pipeline, name) for v in self.versions.values()):
            raise _Refused(
                409,
                6,
                f"Failed to create a new pipeline version. The name {name} already exist. Specify a new name",
            )
        one = {
            "pipeline_id": pipeline,
            "pipeline_version_id": str(uuid.uuid4()),
            "name": name,
            "display_name": name,
            "description": description,
            "created_at": self._now(),
            "pipeline_spec": _spec(manifest),
            "_manifest": manifest,
        }
        self.versions[one["pipeline_version_id"]] = one
        return one

    def _list_versions(self, request, pipeline):
        _found(self.pipelines, pipeline, "Pipeline")
        mine = [one for one in self.versions.values() if one["pipeline_id"] == pipeline]
        return self._page(request, "pipeline_versions", mine)

    def _get_version(self, request, pipeline, key):
        return _found(self.versions, key, "PipelineVersion")

    def _list_runs(self, request):
        runs = list(self.runs.values())
        if "experiment_id" in request.query:
            runs = [run for run in runs if run["experiment_id"] == request.query["experiment_id"]]
        page = self._page(request, "runs", self._of_namespace(request, runs))
        return {**page, "runs": [{**run, "run_details": None} for run in page["runs"]]}

    def _create_run(self, request):
        body = request.body
        _found(self.experiments, body.get("experiment_id"), "Experiment")
        reference = body["pipeline_version_reference"]
        if not reference.get("pipeline_version_id"):
            reference["pipeline_version_id"] = self._newest(reference["pipeline_id"])["pipeline_version_id"]
        version = _found(self.versions, reference["pipeline_version_id"], "PipelineVersion")
        _check_parameters(version["pipeline_spec"], body.get("runtime_config", {}).get("parameters", {}))
        return self._start(body, str(uuid.uuid4()))

    def _get_run(self, request, key):
        return _found(self.runs, key, "Run")

    def _delete_run(self, request, key):
        _found(self.runs, key, "Run")
        del self.runs[key]
        return {}

    def _terminate_run(self, request, key):
        run = _found(self.runs, key, "Run")
        if run["state"] in _ENDED:
            raise _Refused(400, 9, f"Failed to terminate run {key}. Row not found or the run has finished")
        run["state"] = "CANCELING"
        if key in self.executions:
            self.executions[key].terminate()
        return {}

    def _list_recurring(self, request):
        schedules = self._of_namespace(request, list(self.recurring_runs.values()))
        return self._page(request, "recurringRuns", schedules)

    def _create_recurring(self, request):
        body = request.body
        _found(self.experiments, body.get("experiment_id"), "Experiment")
        reference = body["pipeline_version_reference"]
        _found(self.pipelines, reference.get("pipeline_id"), "Pipeline")
        pinned = reference.get("pipeline_version_id")
        version = (
            _found(self.versions, pinned, "PipelineVersion") if pinned else self._newest(reference["pipeline_id"])
        )
        parameters = body.get("runtime_config", {}).get("parameters", {})
        _check_parameters(version["pipeline_spec"], parameters)
        if not 1 <= int(body.get("max_concurrency", 0)) <= 10:
            raise _Refused(
                400, 3, "The max concurrency of the recurring run is out of range. Support 1-10. Received 0"
            )
        trigger = body.get("trigger", {})
        if "cron_schedule" in trigger and (problem := cron_error(trigger["cron_schedule"]["cron"])):
            raise _Refused(400, 3, f"Schedule cron is not a supported format. Error: {problem}")
        if "periodic_schedule" in trigger and int(trigger["periodic_schedule"]["interval_second"]) < 1:
            raise _Refused(400, 3, "Found invalid period schedule interval 0. Set at interval to least 1 second")
        key = str(uuid.uuid4())
        # Lower case, without other characters, 25 of them, and five at random.
        resource = re.sub(r"[^a-z0-9-]+", "", body["display_name"].lower())[:25] + key[:5]
        one = {
            "service_account": "pipeline-runner",
            "no_catchup": False,
            "runtime_config": {},
            **body,
            "recurring_run_id": key,
            "created_at": self._now(),
            "updated_at": self._now(),
            "max_concurrency": str(body["max_concurrency"]),
            "namespace": self.experiments[body["experiment_id"]]["namespace"],
            # The controller has not seen it yet.
            "status": "STATUS_UNSPECIFIED",
            "_resource": resource,
            "_index": 0,
            "_due": [],
        }
        self.recurring_runs[key] = one
        return one

    def _get_recurring(self, request, key):
        return _found(self.recurring_runs, key, "RecurringRun")

    def _enable(self, request, key):
        return self._switch(key, "ENABLE")

    def _disable(self, request, key):
        return self._switch(key, "DISABLE")

    def _switch(self, key, mode):
        one = _found(self.recurring_runs, key, "RecurringRun")
        one["mode"], one["status"], one["updated_at"] = mode, f"{mode}D", self._now()
        return {}

    def _delete_recurring(self, request, key):
        _found(self.recurring_runs, key, "RecurringRun")
        # Kubernetes collects what the schedule owns, unless it is told to leave the orphans.
        if request.query.get("propagation_policy") != "ORPHAN":
            for run in self.runs.values():
                if run.get("recurring_run_id") == key and run["state"] not in _ENDED:
                    run["state"] = "FAILED"
                    if run["run_id"] in self.executions:
                        self.executions[run["run_id"]].close()
        del self.recurring_runs[key]
        return {}

    def _in_namespace(self, request, table):
        namespace = self._asked_namespace(request)
        return [one for one in table.values() if one["namespace"] == namespace]

    def _of_namespace(self, request, items):
        namespace = self._asked_namespace(request)
        return [one for one in items if self.experiments[one["experiment_id"]]["namespace"] == namespace]

    def _asked_namespace(self, request):
        namespace = request.query.get("namespace", "")
        if namespace and not self.multi_user:
            raise _Refused(400, 3, "Invalid input error: In single-user mode, listing cannot filter by namespace")
        return namespace

    def _page(self, request, name, items):
        query = request.query
        if "filter" in query:
            for predicate in json.loads(query["filter"]).get("predicates", []):
                value = predicate.get("stringValue", predicate.get("string_value"))
                if predicate["operation"] not in ("EQUALS", 1) or predicate["key"] not in ("display_name", "name"):
                    raise _Refused(400, 3, f"Invalid filter: {predicate}")
                items = [one for one in items if one.get(predicate["key"]) == value]
        if query.get("sort_by", "").endswith(" desc"):
            # Times are whole seconds on the server; the order of creation decides between equal ones here.
            items = items[::-1]
        start = int(base64.b64decode(query["page_token"])) if query.get("page_token") else 0
        size = min(int(query.get("page_size") or 20), 200)
        page = {name: items[start : start + size], "total_size": len(items), "next_page_token": ""}
        if start + size < len(items):
            page["next_page_token"] = base64.b64encode(str(start + size).encode()).decode()
        return page


_ROUTES = [
    (r"healthz", {"GET": "_healthz"}),
    (r"experiments", {"GET": "_list_experiments", "POST": "_create_experiment"}),
    (r"experiments/([^/:]+)", {"GET": "_get_experiment"}),
    (r"pipelines", {"GET": "_list_pipelines"}),
    (r"pipelines/upload", {"POST": "_upload_pipeline"}),
    (r"pipelines/upload_version", {"POST": "_upload_version"}),
    (r"pipelines/([^/:]+)", {"GET": "_get_pipeline"}),
    (r"pipelines/([^/:]+)/versions", {"GET": "_list_versions"}),
    (r"pipelines/([^/:]+)/versions/([^/:]+)", {"GET": "_get_version"}),
    (r"runs", {"GET": "_list_runs", "POST": "_create_run"}),
    (r"runs/([^/:]+)", {"GET": "_get_run", "DELETE": "_delete_run"}),
    (r"runs/([^/:]+):terminate", {"POST": "_terminate_run"}),
    (r"recurringruns", {"GET": "_list_recurring", "POST": "_create_recurring"}),
    (r"recurringruns/([^/:]+)", {"GET": "_get_recurring", "DELETE": "_delete_recurring"}),
    (r"recurringruns/([^/:]+):enable", {"POST": "_enable"}),
    (r"recurringruns/([^/:]+):disable", {"POST": "_disable"}),
]


class _Refused(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status = status
        self.body = {"error": message, "code": code, "message": message, "details": []}


def _found(table, key, kind):
    if key not in table:
        raise _Refused(404, 5, f"ResourceNotFoundError: {kind} {key} not found")
    return table[key]


def _task(name, state, created):
    return {"task_id": str(uuid.uuid4()), "display_name": name, "state": state, "create_time": created}


def _check_parameters(spec, given):
    """Parameters as the server checks them: none too many, none too few, each of its kind."""
    known = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    for name, definition in known.items():
        if name not in given:
            if not definition.get("isOptional") and "defaultValue" not in definition:
                raise _Refused(
                    400,
                    3,
                    f"parameter {name} is not optional, yet has neither default value nor user provided value",
                )
            continue
        kind, words = _KINDS[definition["parameterType"]]
        if not isinstance(given[name], kind) or (isinstance(given[name], bool) and kind is not bool):
            raise _Refused(
                400,
                3,
                f"input parameter {name} requires type {words}, but the value is not of {words} value type",
            )
    if extra := [name for name in given if name not in known]:
        raise _Refused(400, 3, f"parameter(s) provided are not required by pipeline: {', '.join(extra)}")


def _uploaded(body):
    """The file in a multipart form."""
    return re.search(rb"\r\n\r\n(.*)\r\n--", body, re.DOTALL)[1].decode()


def _spec(manifest):
    try:
        spec = next(yaml.load_all(manifest, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        assert spec["schemaVersion"] == "2.1.0" and spec["root"]
    except Exception:
        raise _Refused(400, 3, "Invalid input error: unknown template format: pipeline spec is invalid") from None
    return spec


def _rfc3339(moment):
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _fnv32a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) % 2**32
    return value


def _shown(value):
    """Without what is for the double alone."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items() if not key.startswith("_")}
    return [_shown(item) for item in value] if isinstance(value, list) else value


def _handler(double):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are two writes, and the second would wait for the client's delayed acknowledgement.
        disable_nagle_algorithm = True

        def log_message(self, *arguments):
            pass

        def _serve(self):
            address = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = data
            if data and "json" in self.headers.get("Content-Type", ""):
                body = json.loads(data)
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            request = Request(self.command, unquote(address.path), query, body, dict(self.headers))
            double.requests.append(request)
            for fault in double._faults:
                if (
                    fault["left"]
                    and re.search(fault["path"], request.path)
                    and fault["method"] in (None, self.command)
                ):
                    fault["left"] -= 1
                    return self._fault(fault)
            if double.login_page:
                return self._login(request)
            if double.token and self.headers.get("Authorization") != f"Bearer {double.token}":
                return self._send(
                    401, {"error": "Unauthenticated", "code": 16, "message": "there is no user identity"}
                )
            try:
                status, content = double._answer(request)
            except _Refused as refused:
                status, content = refused.status, refused.body
                if "/upload" in request.path:
                    content = {"error_message": content["message"], "error_details": content["message"]}
            return self._send(status, _shown(content))

        do_GET = do_POST = do_DELETE = _serve

        def _fault(self, fault):
            if fault["status"] == 0:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(2)
                return None
            body = fault["body"]
            return self._send(fault["status"], {} if body is None else body, fault["type"])

        def _login(self, request):
            """Dex and its like lead to a page that says nothing of a refusal."""
            if request.path == "/dex/auth":
                return self._send(200, "<!doctype html><title>Log in</title>", "text/html; charset=utf-8")
            self.send_response(302)
            self.send_header("Location", "/dex/auth?client_id=kubeflow")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def _send(self, status, content, kind="application/json"):
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
