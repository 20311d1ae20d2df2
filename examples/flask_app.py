"""Flask under gunicorn; handlers run in a process of their own.

gunicorn --preload --worker-class gthread --threads 8 flask_app:app
jobs-service serve flask_app:jobs
"""

from collections.abc import Iterator

from flask import Flask, abort, request
from werkzeug.wrappers import Response

from jobs_service import InvalidJob, JobNotFound
from jobs_service.sync import JobsService

app = Flask(__name__)
jobs = JobsService()  # opened by the first call in each worker, closed at its end


@jobs.handler("thumbnail", time_limit=60)
def thumbnail(image: str, width: int = 640) -> str:
    return f"{image}-{width}.png"


@app.errorhandler(InvalidJob)
def refuse(error: InvalidJob) -> tuple[dict[str, str], int]:
    return {"error": str(error)}, 422


@app.errorhandler(JobNotFound)
def missing(error: JobNotFound) -> tuple[dict[str, str], int]:
    return {"error": str(error)}, 404


@app.post("/thumbnails")
def add() -> tuple[dict[str, object], int]:
    job = jobs.enqueue(thumbnail, request.get_json(), unique=True)
    return {"id": job.id}, 202


@app.get("/thumbnails/<id>")
def look(id: str) -> dict[str, object]:
    job = jobs.get("thumbnail", id)
    return {"state": job.state, "result": job.result}


@app.get("/thumbnails/<id>/events")
def events(id: str) -> Response:
    def stream() -> Iterator[str]:
        with jobs.subscribe("thumbnail", id) as changes:
            for change in changes:
                yield f"data: {change.state}\n\n"

    jobs.get("thumbnail", id)
    return Response(stream(), mimetype="text/event-stream")


@app.get("/ready")
def ready() -> str:
    if not any(process.state == "running" and process.handlers for process in jobs.processes()):
        abort(503, "no process runs the jobs")
    return "ready"
