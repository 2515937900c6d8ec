"""Access control as RocketMQ's ACL 2.0: who somebody is, and what he may do. Pure.

    users.py            users, and their file; a signed request → its user; which requests are asked
    acls.py             what requests touch and do there; what a user may do from where, and its file
    authorization.py    a request → resources and actions; with a user's entries → allowed, or why not

Imports `remoting`. Begin with `authorization.py`. Java: the module auth.
"""
