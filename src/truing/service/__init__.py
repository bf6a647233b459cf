"""The service: any number of models behind the Open Inference Protocol, each with a durable state.

`command` starts the process, `app` has the HTTP routes, `grpc` the gRPC calls, and `protocol` their messages. `models`
holds the models. Each model has an `engine`, which queues and commits `changes`, and a `store`, its database.
"""
