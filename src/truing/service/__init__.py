"""Online truing as a service: a durable state behind the Open Inference Protocol, one process for each.

`protocol` has the bytes, `app` the routes, `command` the process; `truing serve` starts it.
"""
